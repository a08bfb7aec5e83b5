"""Parses answers to raw prompts: everything is text, markup included."""

import codecs
from collections.abc import Callable, Collection, Sequence

from harnessgym.message import Message
from proxies.dialect import TextDelta
from proxies.language import ParsedDelta


class RawParser:
    """Parses one sampled continuation.

    `written` gives the bytes of token ids. `stop_token_ids` are control tokens, not text.
    """

    def __init__(
        self, written: Callable[[Sequence[int]], bytes], *, stop_token_ids: Collection[int] = ()
    ) -> None:
        self.unparsed = 0
        self._written = written
        self._stop = frozenset(stop_token_ids)
        # A character may be split between tokens: an incremental decoder holds its first bytes back.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._said: list[str] = []

    @property
    def reasoning_tokens(self) -> int:
        """Always 0: markup is not parsed."""
        return 0

    def feed(self, ids: Sequence[int]) -> list[ParsedDelta]:
        """The text that these tokens complete."""
        return self._say(self._written([token for token in ids if token not in self._stop]))

    def flush(self) -> list[ParsedDelta]:
        """The end of the text: U+FFFD if it was cut within a character."""
        return self._say(b"", final=True)

    def finish(self) -> Message:
        """The whole text as a message."""
        self.flush()
        return Message("assistant", "".join(self._said))

    def _say(self, data: bytes, *, final: bool = False) -> list[ParsedDelta]:
        text = self._decoder.decode(data, final)
        if not text:
            return []
        self._said.append(text)
        return [TextDelta(text)]
