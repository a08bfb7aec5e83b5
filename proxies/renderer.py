"""Messages to token ids, and only ever forward: what was sampled is never rendered again."""

from collections.abc import Sequence
from typing import Protocol

from harnessgym.message import Message, ToolSpec


class Renderer(Protocol):
    """One model family's prompt format. `render` and `extend` end with the generation prompt of the next
    assistant turn.
    """

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[int]:
        """The prompt for a whole conversation."""
        ...

    def extend(
        self, ids: Sequence[int], new_messages: Sequence[Message], tools: Sequence[ToolSpec]
    ) -> list[int] | None:
        """The tokens to append to `ids` (which end in a sampled assistant turn) so that `new_messages` follow
        it.

        None when the template cannot be continued that way, e.g. the turn was cut off by a length limit.
        """
        ...

    def opening(self, text: str) -> tuple[int, ...]:
        """The tokens that the tokenizer's own configuration puts before a raw text, none if the text
        begins with them.
        """
        ...

    def encode(self, text: str) -> list[int]:
        """The tokens of raw text as it is, without a template. Control tokens that are written out are
        control tokens.
        """
        ...

    def written(self, ids: Sequence[int]) -> bytes:
        """The bytes that token ids stand for, control tokens written out."""
        ...

    def write(self, answer: Message | str) -> list[int] | None:
        """The tokens of an assistant turn that says this, its end included, as they would have been sampled.

        Text is taken as the policy writes it, markup and all. None when the format has no way to say a
        message.
        """
        ...
