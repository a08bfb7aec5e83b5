"""A policy's language: how messages become its tokens and its tokens become messages, from one model
folder.
"""

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
    """Makes the parser of one answer."""

    def __call__(self, *, call_prefix: str, tools: bool) -> Parser:
        """`call_prefix` begins the ids of its tool calls; without `tools` tool-call markup is text."""
        ...


@dataclass(frozen=True, slots=True)
class PolicyLanguage:
    """A renderer and parsers that belong together."""

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
        """What sampled tokens say."""
        parser = self.parser(call_prefix="call_", tools=True)
        parser.feed(ids)
        return parser.finish()

    def write(self, answer: Message | str) -> tuple[int, ...]:
        """The tokens of a turn that says this, its end included; a string is taken as the policy writes it.

        Raises `UpstreamError` for a message that would be read back as another one.
        """
        ids = self.renderer.write(answer)
        if ids is None or (isinstance(answer, Message) and not _says(self.read(ids), answer)):
            raise UpstreamError(
                "The answer cannot be written in the policy's language: its chat template leaves out a part "
                "of it, "
                "or its text would be read as markup. Give it as text or as token ids of the policy."
            )
        return tuple(ids)


def _says(message: Message, other: Message) -> bool:
    """Whether two messages say the same, but for whitespace at the ends of texts."""
    texts = [(said.content.strip(), said.reasoning.strip()) for said in (message, other)]
    calls = [[(call.name, call.parsed) for call in said.tool_calls] for said in (message, other)]
    return texts[0] == texts[1] and calls[0] == calls[1]
