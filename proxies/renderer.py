"""Messages to token ids, and only ever forward: what was sampled is never rendered again."""

from collections.abc import Sequence
from typing import Protocol

from harnessgym.message import Message, ToolSpec


class Renderer(Protocol):
    """One model family's prompt format. Both methods end with the generation prompt of the next assistant turn."""

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[int]:
        """The prompt for a whole conversation."""
        ...

    def extend(self, ids: Sequence[int], new_messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[int] | None:
        """The tokens to append to `ids` (which end in a sampled assistant turn) so that `new_messages` follow it.

        None when the template cannot be continued that way, e.g. the turn was cut off by a length limit.
        """
        ...
