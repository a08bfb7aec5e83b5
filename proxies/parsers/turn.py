"""What all parsers of sampled turns share: ids become text, text becomes deltas and a message.

A grammar's parser says what each piece of text is. Nothing here knows any markup.
"""

from collections.abc import Collection, Sequence

from harnessgym.message import Message, ToolCall
from proxies.detokenizer import Detokenizer, TokenTable
from proxies.dialect import ReasoningDelta, TextDelta, ToolCallDelta
from proxies.language import ParsedDelta
from proxies.parsers.reasoning import Spans


class TurnParser:
    """Parses one sampled turn. A grammar defines `_step` and `_end`.

    A tool call's id is `call_prefix` and the call's index. `stop_token_ids` are control tokens, not text.
    """

    def __init__(
        self, table: TokenTable, *, call_prefix: str, stop_token_ids: Collection[int] = (), tools: bool = True
    ) -> None:
        self.unparsed = 0
        self._table = table
        self._detokenizer = Detokenizer(table)
        self._ids: list[int] = []
        """All tokens except stop tokens."""
        self._call_prefix = call_prefix
        self._stop = frozenset(stop_token_ids)
        self._tools = tools
        self._pending = ""
        """Undecided text: perhaps the start of a tag."""
        self._at = 0
        """The number of characters before the pending text."""
        self._reasoned = Spans()
        self._deltas: list[ParsedDelta] = []
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[ToolCall] = []
        self._flushed = False

    @property
    def reasoning_tokens(self) -> int:
        """See `Parser.reasoning_tokens`."""
        return self._reasoned.tokens([self._table[token] for token in self._ids]) if self._reasoned else 0

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
        self._end()
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

    def _step(self) -> bool:
        """Take pending text through the next tag. Returns False if more text is needed."""
        raise NotImplementedError

    def _end(self) -> None:
        """Settle what was held back: no more text comes."""
        raise NotImplementedError

    def _read(self, text: str) -> None:
        self._pending += text
        while self._pending and self._step():
            pass

    def _take_text(self, length: int) -> str:
        """Remove this many characters from the pending text, and return them."""
        text = self._pending[:length]
        self._pending = self._pending[length:]
        self._at += length
        return text

    def _take(self) -> list[ParsedDelta]:
        deltas = self._deltas
        self._deltas = []
        return deltas

    def _emit(self, text: str) -> None:
        if text:
            self._content.append(text)
            self._deltas.append(TextDelta(text))

    def _emit_reasoning(self, text: str) -> None:
        if text:
            self._reasoning.append(text)
            self._deltas.append(ReasoningDelta(text))

    def _emit_call(self, name: str, arguments: str) -> None:
        index = len(self._calls)
        call = ToolCall(f"{self._call_prefix}{index}", name, arguments)
        self._calls.append(call)
        self._deltas.append(ToolCallDelta(index, call))
