"""The contract of a parser: sampled token ids to content, reasoning and tool calls, as they arrive."""

from collections.abc import Sequence
from typing import Protocol

from harnessgym.message import Message
from proxies.dialect import ReasoningDelta, TextDelta, ToolCallDelta

ParsedDelta = TextDelta | ReasoningDelta | ToolCallDelta


class Parser(Protocol):
    """One sampled turn. For any split of its ids into chunks the deltas concatenate to the parse of the
    whole.

    What does not parse is returned as text, verbatim, and counted; nothing is repaired.
    """

    unparsed: int
    """How many pieces of markup were returned as text."""

    @property
    def reasoning_tokens(self) -> int:
        """How many of the tokens so far stand between the delimiters of the reasoning.

        Delimiters do not count, so that it makes no difference whether the prompt or the policy wrote the
        first one. A token that holds a piece of one and a piece of the reasoning counts; tokens that end the
        turn do not.
        """
        ...

    def feed(self, ids: Sequence[int]) -> list[ParsedDelta]:
        """What these tokens complete."""
        ...

    def flush(self) -> list[ParsedDelta]:
        """What was held back, when no more tokens come. Later calls return nothing."""
        ...

    def finish(self) -> Message:
        """The whole turn; flushes if that has not been done."""
        ...
