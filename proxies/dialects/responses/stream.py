"""Streams of the Responses protocol: numbered events that build up the output items one after the other."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from proxies import sse
from proxies.dialect import Event, Finished, ModelRequest, ReasoningDelta, Stamp, TextDelta, ToolCallDelta
from proxies.dialects.responses.answer import (
    ItemWriter,
    Json,
    message_status,
    response_body,
    response_head,
    summary_part,
    text_part,
)


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
    """Turns deltas into the events of one response, one item open at a time."""

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
        """The response exists and is being worked on."""
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
        """The end of the last item and of the response."""
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
        """The end of the open item, if one is."""
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
        """A whole tool call."""
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
