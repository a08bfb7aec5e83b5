"""Converts messages to ATIF and back, and reads what our export writes into `extra` of a document.

Content is text or parts. Arguments of tool calls are objects; if the policy wrote them in another form, its
text is kept as well. A value in `extra` of any other shape than our export's comes from another project.
"""

import json
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from harnessgym.message import Message, Role, ToolCall
from harnessgym.store.rewards import RewardUnit
from harnessgym.traces.atif import schema

Json = dict[str, Any]

_TYPES = {"png": "image/png", "gif": "image/gif", "webp": "image/webp"}


def content_of(message: Message) -> schema.Content:
    """Return a message's content: its text, followed by its images."""
    if not message.images:
        return message.content
    shown = [
        schema.ContentPart(type="image", source=schema.Media(media_type=_media_type(url), path=url))
        for url in message.images
    ]
    return [schema.ContentPart(type="text", text=message.content), *shown]


def message_of(
    role: Role, content: schema.Content | None, *,
    tool_call_id: str | None = None, extra: dict[str, Any] | None = None,
) -> Message:  # fmt: skip
    """Return the message for a content. Parts that are neither text nor images become `[TYPE]`."""
    name = (extra or {}).get("name")
    if not isinstance(content, list):
        return Message(role, content or "", tool_call_id=tool_call_id, name=name)
    texts = [
        part.text if part.type == "text" else f"[{part.type}]" for part in content if part.type != "image"
    ]
    images = tuple(part.source.path for part in content if part.type == "image" and part.source is not None)
    return Message(
        role, "\n".join(text or "" for text in texts), tool_call_id=tool_call_id, name=name, images=images
    )


def tool_calls_of(message: Message) -> list[schema.AtifToolCall] | None:
    """Return the tool calls of an answer; None if it has none.

    The text of the arguments is kept in `extra` unless it is exactly the JSON that their object would give.
    """
    return [_tool_call(call) for call in message.tool_calls] or None


def answer_of(step: schema.AtifStep) -> Message:
    """Return the answer that a step of the agent holds."""
    message = message_of("assistant", step.message, extra=step.extra)
    calls = tuple(
        ToolCall(call.tool_call_id, call.function_name, (call.extra or {}).get("text", _text(call.arguments)))
        for call in step.tool_calls or ()
    )
    return Message(
        "assistant",
        message.content,
        reasoning=step.reasoning_content or "",
        tool_calls=calls,
        name=message.name,
        images=message.images,
    )


def _tool_call(call: ToolCall) -> schema.AtifToolCall:
    value = call.parsed
    arguments = value if isinstance(value, dict) else {}
    extra = None if _text(arguments) == call.arguments else {"text": call.arguments}
    return schema.AtifToolCall(
        tool_call_id=call.id, function_name=call.name, arguments=arguments, extra=extra
    )


def _text(arguments: dict[str, Any]) -> str:
    return json.dumps(arguments, ensure_ascii=False)


def _media_type(url: str) -> str:
    if url.startswith("data:"):
        return url[5:].partition(";")[0].partition(",")[0] or "image/png"
    return _TYPES.get(url.rpartition(".")[2].lower(), "image/jpeg")


class _OurExtra(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class RolloutExtra(_OurExtra):
    """`rollout` of a document."""

    task_set: str
    task_key: str
    policy: str | None = None
    seed: int = 0
    status: str = "finished"
    stop_reason: str | None = None
    verdict: str | None = None
    created_at: float | None = None
    ended_at: float | None = None


class RewardExtra(_OurExtra):
    """An item of a document's `rewards`."""

    unit: RewardUnit
    target: str
    channel: str
    value: float
    source: str
    detail: str | None = None


class SpawnExtra(_OurExtra):
    """An item of an agent's `spawned`."""

    id: str
    t: float
    agent_id: str | None = None
    attributes: Json = Field(default_factory=dict)
    evidence: str | None = None
    confidence: float | None = None
    source: str | None = None


class AgentExtra(_OurExtra):
    """`extra` of an agent."""

    harness: str
    role: str | None = None
    parent: str | None = None
    evidence: str | None = None
    spawned: list[SpawnExtra] | None = None


class CallExtra(_OurExtra):
    """`call` of a step."""

    id: str
    ordinal: int
    kind: str
    status: str
    session: str
    side_call: str | None = None
    finish_reason: str | None = None
    break_class: str | None = None
    break_detail: str | None = None
    error: str | None = None
    parent: str | None = None
    continues: str | None = None
    shared: int = 0
    heard: list[Annotated[list[int], Field(min_length=1, max_length=2)]] = Field(default_factory=list)
    versions: list[Annotated[list[int], Field(min_length=3, max_length=3)]] = Field(default_factory=list)
    sampling: Json = Field(default_factory=dict)
    timings: Json = Field(default_factory=dict)
    answered: bool = True
    tools: list[Json] | None = None


def ours(model: type[_OurExtra], value: object) -> Json:
    """Return a value as our export wrote it; empty if it has another shape."""
    try:
        return model.model_validate(value).model_dump(exclude_unset=True)
    except ValidationError:
        return {}
