"""A policy's language: turns messages into its tokens and back, as its model folder defines."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from harnessgym.errors import UpstreamError
from harnessgym.message import Message
from harnessgym.registry import load
from harnessgym.tokens import TokenIds
from proxies.parser import Parser
from proxies.renderer import Renderer
from proxies.renderers.template import TemplateRenderer


class MakeParser(Protocol):
    """Creates the parser of one answer."""

    def __call__(self, *, call_prefix: str, tools: bool) -> Parser:
        """`call_prefix` is the prefix of tool-call ids. Without `tools`, tool-call markup is text."""
        ...


@dataclass(frozen=True, slots=True)
class PolicyLanguage:
    """A renderer and the parser that reads its turns."""

    renderer: Renderer
    parser: MakeParser
    stop_token_ids: tuple[int, ...] = ()
    """Tokens that end a turn."""
    sees_images: bool = False
    """Whether images of a prompt reach the policy."""

    @classmethod
    def of_policy(cls, folder: Path, parser: str = "hermes", renderer: str = "auto") -> "PolicyLanguage":
        """The language of a Hugging Face model folder. Raises `PolicyError` or, for an unknown name,
        `ConfigError`.
        """
        rendering: TemplateRenderer = load("renderer", renderer).from_folder(folder)
        kind: Callable[..., Parser] = load("parser", parser)

        def make(*, call_prefix: str, tools: bool) -> Parser:
            return kind(
                rendering.table,
                call_prefix=call_prefix,
                stop_token_ids=rendering.stop_token_ids,
                in_reasoning=rendering.opens_reasoning,
                tools=tools,
            )

        return cls(rendering, make, rendering.stop_token_ids)

    def read(self, ids: TokenIds) -> Message:
        """Sampled tokens as a message."""
        parser = self.parser(call_prefix="call_", tools=True)
        parser.feed(ids)
        return parser.finish()

    def write(self, answer: Message | str) -> tuple[int, ...]:
        """The tokens of an assistant turn, its end included. A string is the turn's raw text, markup and all.

        Raises `UpstreamError` for a message that would be read back as another one.
        """
        ids = self.renderer.write(answer)
        if ids is None or (isinstance(answer, Message) and not _says(self.read(ids), answer)):
            raise UpstreamError(
                "The answer cannot be written in the policy's language: its chat template leaves out a part "
                "of it, or its text would be read as markup. Give it as text or as token ids of the policy."
            )
        return tuple(ids)


def _says(message: Message, other: Message) -> bool:
    """Whether two messages are equal up to whitespace around their texts."""
    texts = [(each.content.strip(), each.reasoning.strip()) for each in (message, other)]
    calls = [[(call.name, call.parsed) for call in each.tool_calls] for each in (message, other)]
    return texts[0] == texts[1] and calls[0] == calls[1]
