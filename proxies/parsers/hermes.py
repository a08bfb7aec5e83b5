"""Parses Hermes markup, which Qwen models write too.

A turn is `<think>…</think>`, then text, then `<tool_call>{"name": …, "arguments": {…}}</tool_call>`.

Separators that a template writes are not content, so a canonical turn that is parsed and rendered again gives
the same text. Separators are:

- newlines at both ends of the reasoning and after `</think>`;
- one newline between text and a call;
- whitespace-only stretches before, between and after tags.

A call ends at the first `</tool_call>`. Reasoning can only come first: think tags elsewhere are text.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Sequence
from enum import Enum
from itertools import accumulate

from harnessgym.message import Message, ToolCall
from proxies import strict_json
from proxies.detokenizer import Detokenizer, TokenTable
from proxies.dialect import ReasoningDelta, TextDelta, ToolCallDelta
from proxies.language import ParsedDelta

_THINK = "<think>"
_THINK_END = "</think>"
_CALL = "<tool_call>"
_CALL_END = "</tool_call>"


class _State(Enum):
    TEXT = "text"
    THINK = "think"
    CALL = "call"


class HermesParser:
    """Parses one sampled turn.

    A tool call's id is `call_prefix` and the call's index. `stop_token_ids` are control tokens, not text.
    `in_reasoning` means that the prompt already ends inside a `<think>`. Without `tools`, `<tool_call>` is
    text.
    """

    def __init__(
        self,
        table: TokenTable,
        *,
        call_prefix: str,
        stop_token_ids: Collection[int] = (),
        in_reasoning: bool = False,
        tools: bool = True,
    ) -> None:
        self.unparsed = 0
        self._table = table
        self._detokenizer = Detokenizer(table)
        self._ids: list[int] = []
        """All tokens except stop tokens."""
        self._call_prefix = call_prefix
        self._stop = frozenset(stop_token_ids)
        self._tags = (_THINK, _THINK_END, _CALL, _CALL_END) if tools else (_THINK, _THINK_END)
        self._any_tag = re.compile("|".join(self._tags))
        self._state = _State.THINK if in_reasoning else _State.TEXT
        self._opened = in_reasoning
        self._thought = in_reasoning
        """`_opened`: the prompt opened the reasoning. `_thought`: the turn has reasoning."""
        self._marked = in_reasoning
        """Whether there was reasoning or a call already."""
        self._pending = ""
        """Undecided text: perhaps the start of a tag, or the body of an open call."""
        self._held = ""
        """Whitespace that is content only if more text follows."""
        self._solid = False
        """Whether the current stretch of text has anything but whitespace."""
        self._trim = in_reasoning
        """Whether newlines at the start of the current stretch are separators."""
        self._deltas: list[ParsedDelta] = []
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[ToolCall] = []
        self._flushed = False

    @property
    def reasoning_tokens(self) -> int:
        """See `Parser.reasoning_tokens`."""
        if not self._thought:
            return 0
        # A delimiter may be several tokens, or share one with text, so it is found in the bytes and its
        # offsets are mapped back to tokens.
        written = [self._table[token] for token in self._ids]
        data = b"".join(written)
        starts = [0, *accumulate(map(len, written))]
        begin = 0 if self._opened else data.index(_THINK.encode()) + len(_THINK)
        end = data.find(_THINK_END.encode(), begin)
        end = len(data) if end < 0 else end
        return bisect_left(starts, end) - bisect_right(starts, begin) + 1 if begin < end else 0

    def feed(self, ids: Sequence[int]) -> list[ParsedDelta]:
        """The deltas that these tokens complete."""
        text_ids = [token for token in ids if token not in self._stop]
        self._ids += text_ids
        self._read(self._detokenizer.feed(text_ids))
        return self._take()

    def flush(self) -> list[ParsedDelta]:
        """The deltas that were held back. Call it after the last token."""
        if self._flushed:
            return []
        self._flushed = True
        self._read(self._detokenizer.flush())
        # What looked like the start of a tag is text after all, and a call that never closed is malformed.
        rest = self._pending
        self._pending = ""
        if self._state is _State.THINK:
            self._reason(rest)
        elif self._state is _State.CALL:
            self._reject(_CALL + rest)
        else:
            self._say(rest)
        if self._state is not _State.THINK and (self._solid or not self._marked):
            self._emit(self._held)
        return self._take()

    def finish(self) -> Message:
        """The whole turn as a message."""
        self.flush()
        return Message(
            "assistant",
            "".join(self._content),
            reasoning="".join(self._reasoning),
            tool_calls=tuple(self._calls),
        )

    def _take(self) -> list[ParsedDelta]:
        deltas = self._deltas
        self._deltas = []
        return deltas

    def _read(self, text: str) -> None:
        # A long call arrives in many pieces: search only the new text and a tag's length before it.
        searched = max(0, len(self._pending) - len(_CALL_END))
        self._pending += text
        while self._pending and self._step(searched):
            searched = 0

    def _step(self, searched: int) -> bool:
        """Consume pending text through the next tag. Returns False if more text is needed."""
        if self._state is _State.CALL:
            return self._step_call(searched)
        tags = (_THINK_END,) if self._state is _State.THINK else self._tags
        tag_match = (
            self._any_tag.search(self._pending)
            if self._state is _State.TEXT
            else re.search(_THINK_END, self._pending)
        )
        end = tag_match.start() if tag_match else len(self._pending) - _overlap(self._pending, tags)
        before = self._pending[:end]
        self._pending = self._pending[tag_match.end() if tag_match else end :]
        if self._state is _State.THINK:
            self._reason(before)
        else:
            self._say(before)
        if tag_match:
            self._enter(tag_match.group())
        return tag_match is not None

    def _step_call(self, searched: int) -> bool:
        end = self._pending.find(_CALL_END, searched)
        if end < 0:
            return False
        body = self._pending[:end]
        self._pending = self._pending[end + len(_CALL_END) :]
        self._state = _State.TEXT
        call = read_call(body, f"{self._call_prefix}{len(self._calls)}")
        if call is None:
            self._reject(_CALL + body + _CALL_END)
        else:
            self._deltas.append(ToolCallDelta(len(self._calls), call))
            self._calls.append(call)
            self._begin(trim=False)
        return True

    def _enter(self, tag: str) -> None:
        if self._state is _State.THINK:
            self._state = _State.TEXT
            self._begin(trim=True)
        elif tag == _CALL:
            self._state = _State.CALL
        elif tag == _THINK and not self._marked and not self._solid:
            self._state = _State.THINK
            self._thought = True
            self._begin(trim=True)
        else:
            self._reject(tag)

    def _begin(self, *, trim: bool) -> None:
        """Start a new stretch of text or reasoning after a tag."""
        self._held = ""
        self._solid = False
        self._trim = trim
        self._marked = True

    def _reject(self, markup: str) -> None:
        self.unparsed += 1
        self._say(markup)

    def _say(self, text: str) -> None:
        """Add answer text. Whitespace at its end is held back: before a tag it may be a separator."""
        text = self._held + text
        if not self._solid:
            self._solid = bool(text) and not text.isspace()
            if not self._solid:
                self._held = text
                return
            text = text.lstrip("\n") if self._trim else text
        self._held = "\n" if text.endswith("\n") else ""
        self._emit(text.removesuffix("\n"))

    def _emit(self, text: str) -> None:
        if text:
            self._content.append(text)
            self._deltas.append(TextDelta(text))

    def _reason(self, text: str) -> None:
        """Add reasoning text, without newlines at both ends."""
        text = self._held + text
        if not self._solid:
            text = text.lstrip("\n")
            self._solid = bool(text)
        reasoning = text.rstrip("\n")
        self._held = text[len(reasoning) :]
        if reasoning:
            self._reasoning.append(reasoning)
            self._deltas.append(ReasoningDelta(reasoning))


def read_call(body: str, call_id: str) -> ToolCall | None:
    """The call in the body of a `<tool_call>`; None if it is malformed.

    The body must be a JSON object with exactly `name` and `arguments`, an object. The call keeps the
    arguments as they were written.
    """
    try:
        members = strict_json.spans(body)
        if set(members) != {"name", "arguments"} or not members["arguments"].startswith("{"):
            return None
        name = strict_json.loads(members["name"])
    except ValueError:
        return None
    return ToolCall(call_id, name, members["arguments"]) if isinstance(name, str) and name else None


def _overlap(text: str, tags: Sequence[str]) -> int:
    """The number of characters at the end of `text` that may be the start of a tag."""
    at = text.rfind("<", max(0, len(text) - max(map(len, tags)) + 1))
    return len(text) - at if at >= 0 and any(tag.startswith(text[at:]) for tag in tags) else 0
