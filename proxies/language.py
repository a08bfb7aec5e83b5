"""A policy's language: how messages become its tokens and its tokens become messages, from one model folder."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

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
class Language:
    """A renderer and parsers that belong together."""

    renderer: Renderer
    parser: MakeParser
    stop_token_ids: tuple[int, ...] = ()
    """Tokens that end a turn."""
    sees_images: bool = False
    """Whether images of a prompt reach the policy."""

    @classmethod
    def of_policy(cls, folder: Path, parser: str = "hermes") -> "Language":
        """The language of a Hugging Face model folder. Raises `PolicyError` or, for the parser, `ConfigError`."""
        renderer = TemplateRenderer.from_folder(folder)
        kind: Callable[..., Parser] = load("parser", parser)

        def make(*, call_prefix: str, tools: bool) -> Parser:
            return kind(
                renderer.table,
                call_prefix=call_prefix,
                stop_token_ids=renderer.stop_token_ids,
                in_reasoning=renderer.opens_reasoning,
                tools=tools,
            )

        return cls(renderer, make, renderer.stop_token_ids)

    def read(self, ids: TokenIds) -> Message:
        """What sampled tokens say."""
        parser = self.parser(call_prefix="call_", tools=True)
        parser.feed(ids)
        return parser.finish()
