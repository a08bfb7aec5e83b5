"""The contract of a parser, which turns sampled token ids into content, reasoning and tool calls."""

from collections.abc import Sequence
from typing import Protocol

from harnessgym.message import Message
from proxies.dialect import ReasoningDelta, TextDelta, ToolCallDelta

ParsedDelta = TextDelta | ReasoningDelta | ToolCallDelta


class Parser(Protocol):
    """The parser of one sampled turn. However its ids are split into chunks, the deltas concatenate to the
    parse of the whole.

    Markup that does not parse is returned verbatim as text and counted; nothing is repaired.
    """

    unparsed: int
    """How many pieces of markup were returned as text."""

    @property
    def reasoning_tokens(self) -> int:
        """The number of tokens so far between the reasoning delimiters.

        The delimiters do not count, so it makes no difference whether the prompt or the policy wrote the
        opening one. A token with a part of a delimiter and a part of the reasoning counts; tokens that end
        the turn do not.
        """
        ...

    def feed(self, ids: Sequence[int]) -> list[ParsedDelta]:
        """The deltas that these tokens complete."""
        ...

    def flush(self) -> list[ParsedDelta]:
        """The deltas that were held back, once no more tokens come. Later calls return nothing."""
        ...

    def finish(self) -> Message:
        """The whole turn; flushes first if necessary."""
        ...
