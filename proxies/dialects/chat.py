"""OpenAI chat completions."""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from harnessgym.message import Message, ToolCall, ToolSpec
from proxies import sse
from proxies.dialect import (
    Answer,
    Delta,
    Event,
    Finished,
    ModelRequest,
    OutputFormat,
    ReasoningDelta,
    Stamp,
    TextDelta,
    TokenUsage,
    ToolCallDelta,
    total_usage,
)
from proxies.dialects.body import Fields, malformed, merge_systems, public_headers, unsupported
from proxies.dialects.openai_protocol import (
    ErrorShape,
    OpenAIProtocol,
    completion_head,
    completion_usage,
    openai_routes,
    read_choice_word,
    read_choices,
)

_ASKED = (
    "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty",
    "logit_bias",
    "seed", "max_tokens", "max_completion_tokens", "stop", "reasoning_effort", "parallel_tool_calls",
)  # fmt: skip
_REFUSED = ("logprobs", "top_logprobs", "audio", "functions", "function_call", "web_search_options")
_ERRORS = ErrorShape(
    "messages",
    "This model's maximum context length is {max_tokens} tokens. However, your messages resulted in "
    "{tokens} tokens. Please reduce the length of the messages.",
)


class Chat(OpenAIProtocol):
    """POST /v1/chat/completions."""

    name = "chat"
    routes = tuple(openai_routes("/chat/completions"))
    errors = _ERRORS

    def parse(self, body: bytes, headers: Mapping[str, str]) -> ModelRequest:
        """Read a request. Raises `RequestProblem`."""
        fields = Fields.parse(body)
        _refuse_options(fields)
        messages = fields.each("messages", _message)
        if not messages:
            malformed("messages: at least one message is required.")
        tools = tuple(fields.each("tools", _tool))
        return ModelRequest(
            model=fields.text("model"),
            messages=merge_systems(messages),
            tools=tools,
            tool_choice=_tool_choice(fields, tools),
            parallel_tool_calls=fields.flag("parallel_tool_calls", default=True),
            max_tokens=fields.count("max_completion_tokens") or fields.count("max_tokens"),
            stop=fields.texts("stop"),
            n=read_choices(fields),
            output=_output(fields),
            stream=fields.flag("stream"),
            include_usage=fields.child("stream_options").flag("include_usage"),
            asked=fields.only(_ASKED),
            headers=public_headers(headers),
        )

    def render(self, answers: Sequence[Answer], request: ModelRequest) -> bytes:
        """A `chat.completion` object."""
        del request
        choices = [
            {
                "index": index,
                "message": _assistant(answer.message),
                "logprobs": None,
                "finish_reason": answer.finish_reason,
            }
            for index, answer in enumerate(answers)
        ]
        out = {
            "id": f"chatcmpl-{answers[0].id}",
            "object": "chat.completion",
            "created": answers[0].created,
            "model": answers[0].model,
            "choices": choices,
            "usage": _usage(total_usage([answer.usage for answer in answers])),
            "system_fingerprint": None,
        }
        return json.dumps(out, ensure_ascii=False, separators=(",", ":")).encode()

    async def stream(
        self, deltas: AsyncIterator[Delta], stamp: Stamp, request: ModelRequest, prompt_tokens: int
    ) -> AsyncIterator[Event]:
        """Yields `chat.completion.chunk` events, then `[DONE]`.

        The first chunk of a choice has the role, the last its finish reason. If asked for, usage comes last.
        """
        del prompt_tokens  # the protocol reports usage at the end
        chunks = _Chunks(stamp, request.include_usage)
        used: list[TokenUsage] = []
        for choice in range(request.n):
            yield Event(chunks.delta(choice, {"role": "assistant", "content": ""}), act=False)
        async for delta in deltas:
            match delta:
                case TextDelta(text, choice):
                    yield Event(chunks.delta(choice, {"content": text}), act=False)
                case ReasoningDelta(text, choice):
                    yield Event(chunks.delta(choice, {"reasoning_content": text}), act=False)
                case ToolCallDelta(index, call, choice):
                    yield Event(
                        chunks.delta(choice, {"tool_calls": [{"index": index, **_call(call)}]}), act=True
                    )
                case Finished(reason, usage, _, choice):
                    used.append(usage)
                    yield Event(chunks.delta(choice, {}, reason), act=True)
        if request.include_usage:
            yield Event(chunks.usage(total_usage(used)), act=True)
        yield Event(sse.DONE, act=True)


class _Chunks:
    """Writes the chunks of one stream."""

    def __init__(self, stamp: Stamp, include_usage: bool) -> None:
        self._head = completion_head("chatcmpl", "chat.completion.chunk", stamp)
        self._tail = {"usage": None} if include_usage else {}

    def delta(self, index: int, delta: dict[str, Any], finish_reason: str | None = None) -> bytes:
        """A chunk with one choice."""
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return sse.encode({**self._head, "choices": [choice], **self._tail})

    def usage(self, usage: TokenUsage) -> bytes:
        """The chunk without choices that carries usage."""
        return sse.encode({**self._head, "choices": [], "usage": _usage(usage)})


def _refuse_options(fields: Fields) -> None:
    fields.refuse(_REFUSED)
    if any(mode != "text" for mode in fields.texts("modalities")):
        unsupported("modalities: only 'text' is supported by this endpoint.")


def _output(fields: Fields) -> OutputFormat | None:
    wanted = fields.child("response_format")
    match wanted.text("type", "text"):
        case "text":
            return None
        case "json_object":
            return OutputFormat()
        case "json_schema":
            described = wanted.child("json_schema")
            return OutputFormat(described.text("name", ""), described.child("schema").raw)
    return malformed(f"{wanted.at('type')}: expected 'text', 'json_object' or 'json_schema'.")


def _message(fields: Fields) -> Message:
    role = fields.text("role")
    name = fields.text("name", "") or None
    if role in ("system", "developer"):
        return Message("system", _content(fields, "\n"), name=name)
    if role == "user":
        return Message("user", _content(fields, "\n"), name=name, images=_images(fields))
    if role == "tool":
        return Message(
            "tool",
            _content(fields, "\n"),
            tool_call_id=fields.text("tool_call_id"),
            name=name,
            images=_images(fields),
            is_error=fields.flag("is_error"),  # not OpenAI's: bridges from other protocols send it
        )
    if role == "assistant":
        fields.refuse(("audio", "function_call"))
        return Message(
            "assistant",
            _content(fields, "") or fields.text("refusal", ""),
            reasoning=fields.text("reasoning_content", "") or fields.text("reasoning", ""),
            tool_calls=tuple(_tool_call(item) for item in fields.children("tool_calls")),
            name=name,
        )
    if role == "function":
        unsupported(f"{fields.at('role')}: 'function' is not supported by this endpoint; use 'tool'.")
    return malformed(
        f"{fields.at('role')}: {role!r} is not one of 'system', 'developer', 'user', 'assistant', 'tool'."
    )


def _content(fields: Fields, joint: str) -> str:
    """The message content as text, with its parts joined by `joint`."""
    value = fields.raw.get("content")
    if value is None and fields.raw["role"] != "assistant":
        malformed(f"{fields.at('content')}: Field required")
    if value is None or isinstance(value, str):
        return value or ""
    return joint.join(
        _part(part) for part in fields.children("content") if part.raw.get("type") not in _shown(fields)
    )


def _shown(fields: Fields) -> tuple[str, ...]:
    """Part types that hold images. Only user and tool messages may have them."""
    return ("image_url",) if fields.raw["role"] in ("user", "tool") else ()


def _part(part: Fields) -> str:
    kind = part.text("type")
    if kind not in ("text", "refusal"):
        unsupported(f"{part.at('type')}: {kind!r} content is not supported by this endpoint here; text is.")
    return part.text(kind)


def _images(fields: Fields) -> tuple[str, ...]:
    parts = fields.children("content") if isinstance(fields.raw.get("content"), list) else []
    return tuple(part.child("image_url").text("url") for part in parts if part.raw.get("type") == "image_url")


def _tool_call(fields: Fields) -> ToolCall:
    if fields.text("type", "function") != "function":
        unsupported(f"{fields.at('type')}: only function tool calls are supported by this endpoint.")
    function = fields.child("function")
    arguments = function.raw.get("arguments")
    if not isinstance(arguments, str):  # some clients send the object itself
        arguments = json.dumps(arguments or {}, ensure_ascii=False)
    return ToolCall(fields.text("id", ""), function.text("name"), arguments)


def _tool(fields: Fields) -> ToolSpec:
    if fields.text("type") != "function":
        unsupported(
            f"{fields.at('type')}: {fields.raw['type']!r} tools are not supported by this endpoint; only "
            "'function' is."
        )
    function = fields.child("function")
    return ToolSpec(function.text("name"), function.text("description", ""), function.child("parameters").raw)


def _tool_choice(fields: Fields, tools: tuple[ToolSpec, ...]) -> str:
    word = read_choice_word(fields)
    if word is not None:
        return word
    named = fields.child("tool_choice")
    if named.text("type") != "function":
        unsupported(f"tool_choice.type: {named.raw['type']!r} is not supported by this endpoint.")
    name = named.child("function").text("name")
    if all(tool.name != name for tool in tools):
        malformed(f"tool_choice: {name!r} is not among the tools.")
    return name


def _assistant(message: Message) -> dict[str, Any]:
    out: dict[str, Any] = {"role": "assistant", "content": message.content, "refusal": None}
    if message.reasoning:
        out["reasoning_content"] = message.reasoning
    if message.tool_calls:
        # OpenAI sends null, not an empty string, beside tool calls; some clients tell the two apart.
        out["content"] = message.content or None
        out["tool_calls"] = [_call(call) for call in message.tool_calls]
    return out


def _call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _usage(usage: TokenUsage) -> dict[str, Any]:
    return {
        **completion_usage(usage),
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }
