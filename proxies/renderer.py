"""The contract of a renderer, which turns messages into token ids without rendering sampled turns again."""

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
        """The tokens of `new_messages`, to append to `ids`, which end in a sampled assistant turn.

        None if the template cannot be continued that way, for example after a turn that a length limit cut
        off.
        """
        ...

    def opening(self, text: str) -> tuple[int, ...]:
        """The tokens that the tokenizer's configuration puts before a raw text; none if the text begins with
        them.
        """
        ...

    def encode(self, text: str) -> list[int]:
        """The tokens of raw text, without a template. Spelled-out control tokens become control tokens."""
        ...

    def written(self, ids: Sequence[int]) -> bytes:
        """The bytes of token ids, with control tokens spelled out."""
        ...

    def write(self, answer: Message | str) -> list[int] | None:
        """The tokens of an assistant turn, its end included, as the policy would sample them.

        A string is the turn's raw text, markup and all. None if the format cannot express the message.
        """
        ...
