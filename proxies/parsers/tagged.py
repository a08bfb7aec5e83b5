"""Parses turns whose reasoning and tool calls stand between tags.

A turn is reasoning between two tags, then text, then calls. A grammar names its tags and reads what is
between those of a call.

Separators that a template writes are not content, so a canonical turn that is parsed and rendered again gives
the same text. Separators are:

- newlines at both ends of the reasoning and after its closing tag;
- up to `separator` newlines between text and a call;
- whitespace-only stretches before, between and after tags.

A call ends at the first closing tag. Reasoning can only come first: its tags elsewhere are text.
"""

from collections.abc import Collection, Mapping, Sequence
from enum import Enum
from typing import ClassVar

from harnessgym.message import ToolSpec
from proxies.detokenizer import TokenTable
from proxies.parsers.tags import Tags
from proxies.parsers.turn import TurnParser

Think = tuple[str, str]
"""The tags before and after reasoning."""
NamedCall = tuple[str, str]
"""A tool's name and the JSON text of its arguments."""


class _State(Enum):
    TEXT = "text"
    THINK = "think"
    CALL = "call"


class TaggedParser(TurnParser):
    """Parses one sampled turn. By itself it knows no tool calls.

    `in_reasoning` means that the prompt already ends inside the reasoning, and `think` are the tags around
    it; the grammar's own if not given. Without `tools`, calls are text. `offered` are the tools: their
    schemas may be needed to read arguments.
    """

    own_think: ClassVar[Think] = ("<think>", "</think>")
    """The tags around the reasoning that the grammar's families use."""
    calls: ClassVar[Mapping[str, str]] = {}
    """The closing tag of every tag that opens calls; empty for calls that the end of the turn closes."""
    stray: ClassVar[tuple[str, ...]] = ()
    """Further tags that mean nothing by themselves."""
    separator: ClassVar[int] = 1
    """Most newlines between text and a call that are no content."""

    def __init__(
        self,
        table: TokenTable,
        *,
        call_prefix: str,
        stop_token_ids: Collection[int] = (),
        in_reasoning: bool = False,
        tools: bool = True,
        offered: Sequence[ToolSpec] = (),
        think: Think | None = None,
    ) -> None:
        super().__init__(table, call_prefix=call_prefix, stop_token_ids=stop_token_ids, tools=tools)
        self._offered = offered
        self._think = think or self.own_think
        self._text_tags = Tags.of(self._all_tags(tools=tools))
        self._state = _State.THINK if in_reasoning else _State.TEXT
        self._marked = in_reasoning
        """Whether there was reasoning or a call already."""
        self._tag = ""
        """The tag that opened the current call, and its closing tag."""
        self._close = ""
        self._body: list[str] = []
        """The body of an open call, up to the undecided text."""
        self._held: list[str] = []
        """Whitespace that is content only if more text follows."""
        self._solid = False
        """Whether the current stretch of text has anything but whitespace."""
        self._trim = in_reasoning
        """Whether newlines at the start of the current stretch are separators."""
        if in_reasoning:
            self._reasoned.open(0)

    @classmethod
    def markers(cls) -> tuple[str, ...]:
        """The tags of which a policy must know one to call tools; none if it calls them without any."""
        return tuple(cls.calls)

    def read_calls(self, tag: str, body: str) -> Sequence[NamedCall] | None:
        """The calls in a body that `tag` opened; None if it is malformed."""
        raise NotImplementedError

    def begins_call(self, text: str) -> bool | None:  # noqa: ARG002
        """Whether an answer that begins with this text is a call without tags; None if that is open.

        `text` does not begin with whitespace, and may be empty.
        """
        return False

    def _all_tags(self, *, tools: bool) -> tuple[str, ...]:
        closing = (tag for tag in self.calls.values() if tag)
        return (*self._think, *((*self.calls, *closing, *self.stray) if tools else ()))

    def _end(self) -> None:
        # What looked like the start of a tag is text after all, and a call that never closed is malformed
        # unless the end of the turn closes it.
        rest = self._take_text(len(self._pending))
        if self._state is _State.THINK:
            self._reason(rest)
        elif self._state is _State.TEXT:
            self._say(rest)
        else:
            self._body.append(rest)
            self._close_call("" if self._close else None)
        if self._state is not _State.THINK and (self._solid or not self._marked):
            self._emit("".join(self._held))

    def _step(self) -> bool:
        if self._state is _State.CALL:
            return self._step_call()
        if self._state is _State.TEXT and self._tools and not self._solid and not self._calls:
            begins = self._begins_bare()
            if begins is not False:
                return bool(begins)
        tags = Tags.of((self._think[1],)) if self._state is _State.THINK else self._text_tags
        tag, end = tags.find(self._pending)
        before = self._take_text(end)
        if self._state is _State.THINK:
            self._reason(before)
        else:
            self._say(before)
        if tag:
            self._enter(tag)
        return bool(tag)

    def _begins_bare(self) -> bool | None:
        """Enter a call without tags if the text is one; None if that is open."""
        self._say(self._take_text(len(self._pending) - len(self._pending.lstrip())))
        begins = self.begins_call(self._pending)
        if begins:
            self._open_call("", "")
        return begins

    def _step_call(self) -> bool:
        # A long call arrives in many pieces: only what may be a part of the closing tag stays pending.
        if not self._close:
            self._body.append(self._take_text(len(self._pending)))
            return False
        tag, end = Tags.of((self._close,)).find(self._pending)
        self._body.append(self._take_text(end))
        if not tag:
            return False
        self._take_text(len(tag))
        self._close_call(tag)
        return True

    def _open_call(self, tag: str, close: str) -> None:
        self._state = _State.CALL
        self._tag, self._close, self._body = tag, close, []

    def _close_call(self, closing: str | None) -> None:
        """End the open call: at its closing tag, at the end of a turn that is to close it (None), or at one
        that is not to ("").
        """
        body = "".join(self._body)
        self._body = []
        self._state = _State.TEXT
        calls = None if closing == "" else self.read_calls(self._tag, body)
        if not calls:
            self._reject(self._tag + body + (closing or ""))
            return
        for name, arguments in calls:
            self._emit_call(name, arguments)
        self._begin(trim=False)

    def _enter(self, tag: str) -> None:
        opened = self._at + len(tag)
        if self._state is _State.THINK:
            self._reasoned.close(self._at)
            self._state = _State.TEXT
            self._begin(trim=True)
        elif tag in self.calls:
            self._open_call(tag, self.calls[tag])
        elif tag == self._think[0] and not self._marked and not self._solid:
            self._state = _State.THINK
            self._reasoned.open(opened)
            self._begin(trim=True)
        else:
            self._take_text(len(tag))
            self._reject(tag)
            return
        self._take_text(len(tag))

    def _begin(self, *, trim: bool) -> None:
        """Start a new stretch of text or reasoning after a tag."""
        self._held = []
        self._solid = False
        self._trim = trim
        self._marked = True

    def _reject(self, markup: str) -> None:
        self.unparsed += 1
        self._say(markup)

    def _say(self, text: str) -> None:
        """Add answer text. Whitespace at its end is held back: before a tag it may be a separator."""
        if not self._solid and (not text or text.isspace()):
            self._held.append(text)
            return
        text = "".join([*self._held, text])
        if not self._solid and self._trim:
            text = text.lstrip("\n")
        self._solid = True
        newlines = min(len(text) - len(text.rstrip("\n")), self.separator)
        self._held = ["\n" * newlines]
        self._emit(text[: len(text) - newlines])

    def _reason(self, text: str) -> None:
        """Add reasoning text, without newlines at both ends."""
        if not text.strip("\n"):
            self._held.append(text if self._solid else "")
            return
        text = "".join([*self._held, text])
        if not self._solid:
            text = text.lstrip("\n")
            self._solid = True
        reasoning = text.rstrip("\n")
        self._held = [text[len(reasoning) :]]
        self._emit_reasoning(reasoning)
