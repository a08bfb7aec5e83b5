"""Answers of the Responses protocol: the response object and its output items.

Streamed and whole answers have the same items.
"""

import base64
import binascii
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harnessgym.message import Message, ToolCall
from proxies import sse
from proxies.dialect import (
    Event,
    Finished,
    FinishReason,
    ModelRequest,
    ReasoningDelta,
    Stamp,
    TextDelta,
    TokenUsage,
    ToolCallDelta,
)
from proxies.dialects.responses.client_tools import command_events, unwritten, write_call
from proxies.dialects.responses.tools import bare_name, echo_choice, echo_tools
from proxies.previous import response_id

_ITEM = re.compile(r"(?:rs|msg|fc|ctc|lsh|sh|apc|cu)_([0-9A-Za-z]+)_(\d+)([a-z]*)")
_CALL = re.compile(r"call_([0-9A-Za-z]+)_\d+")
_MARK = b"harnessgym-reasoning:"
_RAW = "r"


def item_id(prefix: str, answer_id: str, number: int, ending: str = "") -> str:
    """The id of the `number`-th item of its type in an answer.

    `ending` has what the item itself does not say of the sampled arguments: "r" marks a custom tool call
    whose `input` is the call's whole arguments, not the text inside them; see `client_tools` for others.
    """
    return f"{prefix}_{answer_id}_{number}{ending}"


def ending_of(identifier: str) -> str:
    """How an item's id ends; empty if it was not minted here."""
    match = _ITEM.fullmatch(identifier)
    return "" if match is None else match[3]


def is_raw(identifier: str) -> bool:
    """Whether an item's id marks it as raw."""
    return ending_of(identifier) == _RAW


def call_of_item(identifier: str) -> str:
    """The id of the call in an item with this id; the id itself if it was not minted here."""
    match = _ITEM.fullmatch(identifier)
    return identifier if match is None else f"call_{match[1]}_{match[2]}"


def answer_of(item: str, call: str = "") -> str | None:
    """The id of the answer that an item belongs to, read from the item's id or its tool call's id.

    None if neither id was minted here.
    """
    match = _ITEM.fullmatch(item) or _CALL.fullmatch(call)
    return None if match is None else match[1]


def part_of(answer: Message, item: str) -> Message | None:
    """The part of an answer that is its item with this id; None if it has no such item."""
    match = _ITEM.fullmatch(item)
    if match is None:
        return None
    kind, number = item.partition("_")[0], int(match[2])
    if kind == "rs":
        return Message("assistant", reasoning=answer.reasoning) if answer.reasoning and not number else None
    if kind == "msg":
        return None if number else Message("assistant", answer.content)
    calls = answer.tool_calls[number : number + 1]
    return Message("assistant", tool_calls=calls) if calls else None


def seal(reasoning: str) -> str:
    """Reasoning as `encrypted_content`. It is encoded, not encrypted: a client sends the exact text back."""
    return base64.b64encode(_MARK + reasoning.encode()).decode()


def unseal(content: str) -> str | None:
    """The reasoning in an `encrypted_content`; None if it is not one of ours."""
    try:
        data = base64.b64decode(content, validate=True)
        return data.removeprefix(_MARK).decode() if data.startswith(_MARK) else None
    except (binascii.Error, ValueError):
        return None


Json = dict[str, Any]
_ENCRYPTED = "reasoning.encrypted_content"


class ItemWriter:
    """Writes the output items of one answer."""

    def __init__(self, answer_id: str, request: ModelRequest) -> None:
        self._answer_id = answer_id
        self._specs = {spec.name: spec for spec in request.tools}
        self._sealed = _ENCRYPTED in request.asked.get("include", ())

    def output(self, message: Message, reason: FinishReason) -> list[Json]:
        """All items of a whole answer.

        There is always at least one, so that a client can send back even an empty answer.
        """
        out = [self.reasoning(0, message.reasoning)] if message.reasoning else []
        if message.content or not (message.reasoning or message.tool_calls):
            out.append(self.message(0, message.content, message_status(reason)))
        return out + [self.call(number, call) for number, call in enumerate(message.tool_calls)]

    def reasoning(self, number: int, text: str) -> Json:
        """A reasoning item: the whole text as its one summary and, if asked for, as `encrypted_content`."""
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
        """A function call, a custom tool call with its plain text, or a call of a client's tool."""
        spec = self._specs.get(call.name)
        written = write_call(spec, call) if spec is not None and spec.native else None
        if written is not None:
            prefix, ending, members = written
            return {"id": item_id(prefix, self._answer_id, number, ending), **members}
        name = call.name if spec is None else bare_name(spec)
        space = {"namespace": spec.namespace} if spec is not None and spec.namespace else {}
        if spec is None or not spec.freeform:
            head = {
                "id": item_id("fc", self._answer_id, number),
                "type": "function_call",
                "status": "completed",
            }
            return {**head, "call_id": call.id, "name": name, **space, "arguments": call.arguments}
        # The policy may have written arguments that hold no plain `input`. They are then sent whole, and the
        # id says so, so that the call that comes back has the sampled arguments.
        text = _plain(call)
        ending = _RAW if text is None else ""
        head = {"id": item_id("ctc", self._answer_id, number, ending), "type": "custom_tool_call"}
        tool_input = call.arguments if text is None else text
        return {**head, "status": "completed", "call_id": call.id, "name": name, **space, "input": tool_input}


def message_status(reason: FinishReason) -> str:
    """The status of an answer's last message: `incomplete` if it was cut at its length."""
    return "incomplete" if reason == "length" else "completed"


def text_part(text: str) -> Json:
    """A part with visible text."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def summary_part(text: str) -> Json:
    """A part with reasoning text."""
    return {"type": "summary_text", "text": text}


def response_head(stamp: Stamp, request: ModelRequest) -> Json:
    """The part of a response that depends on the request only."""
    asked = request.asked
    return {
        "id": response_id(stamp.id),
        "object": "response",
        "created_at": stamp.created,
        "model": stamp.model,
        "background": False,
        "instructions": request.as_sent[0].content if request.instructions else None,
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
    """A response object. It is in progress while `reason` is None."""
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
    """The response object of a failed request."""
    return {
        "id": response_id(answer_id),
        "object": "response",
        "status": "failed",
        "error": {"code": error["code"] or "server_error", "message": error["message"]},
        "incomplete_details": None,
        "output": [],
    }


def _plain(call: ToolCall) -> str | None:
    """The text in a custom tool's arguments; None if they are not exactly `{"input": text}`."""
    arguments = call.parsed
    text = arguments.get("input") if isinstance(arguments, dict) and len(arguments) == 1 else None
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


@dataclass
class _Open:
    """The item that is being written."""

    kind: str
    """message or reasoning"""
    id: str
    number: int
    text: str = ""


@dataclass
class ResponseStream:
    """Turns deltas into the events of one response. One item is open at a time."""

    stamp: Stamp
    request: ModelRequest
    _sequence: int = 0
    _done: list[Json] = field(default_factory=list)
    """Items that are complete."""
    _open: _Open | None = None

    def __post_init__(self) -> None:
        self._items = ItemWriter(self.stamp.id, self.request)
        self._head = response_head(self.stamp, self.request)
        self._numbers = {"message": 0, "reasoning": 0, "call": 0}

    def begin(self) -> Iterator[Event]:
        """Yields `response.created` and `response.in_progress`."""
        body = response_body(self._head)
        yield self._event("created", response=body)
        yield self._event("in_progress", response=body)

    def write(self, delta: TextDelta | ReasoningDelta | ToolCallDelta) -> Iterator[Event]:
        """The events of one delta."""
        match delta:
            case TextDelta(text):
                yield from self._enter("message")
                yield self._within("output_text.delta", {"content_index": 0}, delta=text, logprobs=[])
                self._add(text)
            case ReasoningDelta(text):
                yield from self._enter("reasoning")
                yield self._within("reasoning_summary_text.delta", {"summary_index": 0}, delta=text)
                self._add(text)
            case ToolCallDelta(_, call):
                yield from self._close("completed")
                yield from self._call(self._items.call(self._next("call"), call))

    def finish(self, end: Finished) -> Iterator[Event]:
        """Yields the end of the last item and of the response."""
        # An empty answer gets an empty message, as in `ItemWriter.output`.
        if not self._done and self._open is None:
            yield from self._enter("message")
        yield from self._close(message_status(end.reason))
        kind = "incomplete" if end.reason == "length" else "completed"
        yield self._event(
            kind, act=True, response=response_body(self._head, self._done, end.reason, end.usage)
        )

    def _enter(self, kind: str) -> Iterator[Event]:
        """Open an item unless one of that kind is open."""
        if self._open is not None and self._open.kind == kind:
            return
        yield from self._close("completed")
        number = self._next(kind)
        if kind == "message":
            item = {**self._items.message(number, "", "in_progress"), "content": []}
            added = "content_part.added"
            place = {"content_index": 0}
            part = text_part("")
        else:
            item = {"id": self._items.reasoning(number, "")["id"], "type": "reasoning", "summary": []}
            added = "reasoning_summary_part.added"
            place = {"summary_index": 0}
            part = summary_part("")
        yield self._event("output_item.added", output_index=len(self._done), item=item)
        self._open = _Open(kind, item["id"], number)
        yield self._within(added, place, part=part)

    def _close(self, status: str) -> Iterator[Event]:
        """Yields the events that end the open item, if there is one."""
        if self._open is None:
            return
        text = self._open.text
        number = self._open.number
        if self._open.kind == "message":
            place = {"content_index": 0}
            yield self._within("output_text.done", place, text=text, logprobs=[])
            yield self._within("content_part.done", place, part=text_part(text))
            yield self._item_done(self._items.message(number, text, status), act=True)
        else:
            place = {"summary_index": 0}
            yield self._within("reasoning_summary_text.done", place, text=text)
            yield self._within("reasoning_summary_part.done", place, part=summary_part(text))
            yield self._item_done(self._items.reasoning(number, text), act=False)
        self._open = None

    def _call(self, item: Json) -> Iterator[Event]:
        """Yields the events of a whole tool call."""
        if item["type"] not in ("function_call", "custom_tool_call"):
            yield from self._client_call(item)
            return
        field = "input"
        event = "custom_tool_call_input"
        if item["type"] == "function_call":
            field = "arguments"
            event = "function_call_arguments"
        place = {"item_id": item["id"], "output_index": len(self._done)}
        yield self._event(
            "output_item.added",
            output_index=len(self._done),
            item={**item, "status": "in_progress", field: ""},
        )
        yield self._event(f"{event}.delta", act=True, **place, delta=item[field])
        yield self._event(f"{event}.done", act=True, **place, **{field: item[field]})
        yield self._item_done(item, act=True)

    def _client_call(self, item: Json) -> Iterator[Event]:
        """Yields the events of a call of a client's tool; a client may act on the first of them."""
        index = len(self._done)
        yield self._event("output_item.added", act=True, output_index=index, item=unwritten(item))
        for name, members in command_events(item):
            yield self._event(name, act=True, output_index=index, **members)
        yield self._item_done(item, act=True)

    def _item_done(self, item: Json, *, act: bool) -> Event:
        event = self._event("output_item.done", act=act, output_index=len(self._done), item=item)
        self._done.append(item)
        return event

    def _within(self, kind: str, place: dict[str, int], **data: Any) -> Event:
        """An event inside the open item."""
        assert self._open is not None
        return self._event(
            kind, **{"item_id": self._open.id, "output_index": len(self._done), **place, **data}
        )

    def _event(self, kind: str, *, act: bool = False, **data: Any) -> Event:
        name = f"response.{kind}"
        encoded = sse.encode({"type": name, "sequence_number": self._sequence, **data}, name)
        self._sequence += 1
        return Event(encoded, act)

    def _add(self, text: str) -> None:
        assert self._open is not None
        self._open.text += text

    def _next(self, kind: str) -> int:
        number = self._numbers[kind]
        self._numbers[kind] += 1
        return number
