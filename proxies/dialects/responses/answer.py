"""Answers of the Responses protocol: the response object and its output items, the same whether streamed
or not.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from harnessgym.message import Message, ToolCall
from proxies.dialect import FinishReason, ModelRequest, Stamp, TokenUsage
from proxies.dialects.responses.ids import item_id, seal
from proxies.dialects.responses.tools import bare_name, echo_choice, echo_tools
from proxies.previous import response_id

Json = dict[str, Any]
_ENCRYPTED = "reasoning.encrypted_content"


class ItemWriter:
    """Writes the output items of one answer."""

    def __init__(self, answer_id: str, request: ModelRequest) -> None:
        self._answer_id = answer_id
        self._specs = {spec.name: spec for spec in request.tools}
        self._sealed = _ENCRYPTED in request.asked.get("include", ())

    def output(self, message: Message, reason: FinishReason) -> list[Json]:
        """All items of a whole answer; there is always one, so that an empty answer too can be sent back."""
        out = [self.reasoning(0, message.reasoning)] if message.reasoning else []
        if message.content or not (message.reasoning or message.tool_calls):
            out.append(self.message(0, message.content, message_status(reason)))
        return out + [self.call(number, call) for number, call in enumerate(message.tool_calls)]

    def reasoning(self, number: int, text: str) -> Json:
        """A reasoning item: one summary that says all of it and, if asked for, the text to bring back."""
        item: Json = {"id": item_id("rs", self._answer_id, number), "type": "reasoning"}
        item["summary"] = [summary_part(text)]
        return {**item, "encrypted_content": seal(text)} if self._sealed else item

    def message(self, number: int, text: str, status: str) -> Json:
        """A message item with one text part."""
        head = {
            "id": item_id("msg", self._answer_id, number),
            "type": "message",
            "status": status,
            "role": "assistant",
        }
        return {**head, "content": [text_part(text)]}

    def call(self, number: int, call: ToolCall) -> Json:
        """A function call, or the call of a custom tool with its plain text."""
        spec = self._specs.get(call.name)
        name = call.name if spec is None else bare_name(spec)
        space = {"namespace": spec.namespace} if spec is not None and spec.namespace else {}
        if spec is None or not spec.freeform:
            head = {
                "id": item_id("fc", self._answer_id, number),
                "type": "function_call",
                "status": "completed",
            }
            return {**head, "call_id": call.id, "name": name, **space, "arguments": call.arguments}
        text = _plain(call)
        head = {"id": item_id("ctc", self._answer_id, number, raw=text is None), "type": "custom_tool_call"}
        given = call.arguments if text is None else text
        return {**head, "status": "completed", "call_id": call.id, "name": name, **space, "input": given}


def message_status(reason: FinishReason) -> str:
    """Status of the message that an answer ended in."""
    return "incomplete" if reason == "length" else "completed"


def text_part(text: str) -> Json:
    """Visible text."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def summary_part(text: str) -> Json:
    """Reasoning text."""
    return {"type": "summary_text", "text": text}


def response_head(stamp: Stamp, request: ModelRequest) -> Json:
    """What a response repeats of its request, whatever becomes of it."""
    asked = request.asked
    return {
        "id": response_id(stamp.id),
        "object": "response",
        "created_at": stamp.created,
        "model": stamp.model,
        "background": False,
        "instructions": request.said[0].content if request.instructions else None,
        "max_output_tokens": request.max_tokens,
        "metadata": asked.get("metadata") or {},
        "parallel_tool_calls": _or(asked, "parallel_tool_calls", True),
        "previous_response_id": asked.get("previous_response_id"),
        "reasoning": asked.get("reasoning") or {"effort": None, "summary": None},
        "temperature": _or(asked, "temperature", 1.0),
        "text": {"format": _text_format(request)},
        "tool_choice": echo_choice(request.tool_choice, request.tools),
        "tools": echo_tools(request.tools),
        "top_p": _or(asked, "top_p", 1.0),
        "truncation": _or(asked, "truncation", "disabled"),
    }


def response_body(
    head: Json,
    output: Sequence[Json] = (),
    reason: FinishReason | None = None,
    usage: TokenUsage | None = None,
) -> Json:
    """A response object: in progress while `reason` is None."""
    status = "in_progress" if reason is None else "incomplete" if reason == "length" else "completed"
    return {
        **head,
        "status": status,
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if reason == "length" else None,
        "output": list(output),
        "usage": None if usage is None else _usage(usage),
    }


def failed_body(answer_id: str, error: Json) -> Json:
    """A response object that says only why there is no answer."""
    return {
        "id": response_id(answer_id),
        "object": "response",
        "status": "failed",
        "error": {"code": error["code"] or "server_error", "message": error["message"]},
        "incomplete_details": None,
        "output": [],
    }


def _plain(call: ToolCall) -> str | None:
    """The text in a custom tool's arguments; None if the policy wrote anything else into them."""
    given = call.parsed
    text = given.get("input") if isinstance(given, dict) and len(given) == 1 else None
    return text if isinstance(text, str) else None


def _or(asked: Mapping[str, Any], name: str, default: Any) -> Any:
    value = asked.get(name)
    return default if value is None else value


def _text_format(request: ModelRequest) -> Json:
    if request.output is None:
        return {"type": "text"}
    if request.output.schema is None:
        return {"type": "json_object"}
    return {
        "type": "json_schema",
        "name": request.output.name,
        "schema": dict(request.output.schema),
        "strict": False,
    }


def _usage(usage: TokenUsage) -> Json:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
