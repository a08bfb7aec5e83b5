"""A policy's language: turns messages into its tokens and back, as its model folder defines.

A `Renderer` turns messages into token ids without rendering sampled turns again. A `Parser` turns sampled
token ids into content, reasoning and tool calls. Their members live in `renderers/` and `parsers/`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from harnessgym.errors import UpstreamError
from harnessgym.message import Message, ToolSpec
from harnessgym.registry import load
from harnessgym.tokens import TokenIds
from proxies.dialect import ReasoningDelta, TextDelta, ToolCallDelta
from proxies.parsers.choice import AUTO, choose
from proxies.renderers.template import TemplateRenderer

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


class ReadSampled(Protocol):
    """Reads tokens that a policy sampled."""

    def __call__(self, ids: TokenIds, policy_id: str | None, offered: Sequence[ToolSpec] = (), /) -> Message:
        """The message. `offered` are the tools that the policy could call."""
        ...


class Renderer(Protocol):
    """One model family's prompt format. `render` and `extend` end with the generation prompt of the next
    assistant turn.
    """

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> TokenIds:
        """The prompt for a whole conversation. `PieceTokens` let prompts share memory and storage."""
        ...

    def extend(
        self, ids: Sequence[int], new_messages: Sequence[Message], tools: Sequence[ToolSpec]
    ) -> TokenIds | None:
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


class MakeParser(Protocol):
    """Creates the parser of one answer."""

    def __call__(self, *, call_prefix: str, tools: bool, offered: Sequence[ToolSpec] = ()) -> Parser:
        """`call_prefix` is the prefix of tool-call ids. Without `tools`, tool-call markup is text.

        `offered` are the request's tools: some grammars need their schemas to tell strings from values.
        """
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
    no_tools: str = ""
    """Why the policy cannot be offered tools; empty if it can."""

    @classmethod
    def of_policy(cls, folder: Path, parser: str = AUTO, renderer: str = "auto") -> "PolicyLanguage":
        """The language of a Hugging Face model folder. Raises `PolicyError`, also for a parser that does not
        fit the folder, or `ConfigError` for an unknown name.
        """
        rendering: TemplateRenderer = load("renderer", renderer).from_folder(folder)
        choice = choose(rendering, parser, str(folder))

        def make(*, call_prefix: str, tools: bool, offered: Sequence[ToolSpec] = ()) -> Parser:
            parsed: Parser = choice.kind(
                rendering.table,
                call_prefix=call_prefix,
                stop_token_ids=rendering.stop_token_ids,
                in_reasoning=choice.in_reasoning,
                tools=tools,
                offered=offered,
                **choice.options,
            )
            return parsed

        return cls(rendering, make, rendering.stop_token_ids, no_tools=choice.no_tools)

    def read(self, ids: TokenIds, offered: Sequence[ToolSpec] = ()) -> Message:
        """Sampled tokens as a message. `offered` are the tools that the policy could call."""
        parser = self.parser(call_prefix="call_", tools=True, offered=offered)
        parser.feed(ids)
        return parser.finish()

    def write(self, answer: Message | str) -> tuple[int, ...]:
        """The tokens of an assistant turn, its end included. A string is the turn's raw text, markup and all.

        Raises `UpstreamError` for a message that would be read back as another one.
        """
        ids = self.renderer.write(answer)
        if ids is None or (
            isinstance(answer, Message) and not _says(self.read(ids, _called(answer)), answer)
        ):
            raise UpstreamError(
                "The answer cannot be written in the policy's language: its chat template leaves out a part "
                "of it, or its text would be read as markup. Give it as text or as token ids of the policy."
            )
        return tuple(ids)


def _called(answer: Message) -> list[ToolSpec]:
    """Tools whose schemas say of which type the arguments of an answer's calls are."""
    return [
        ToolSpec(
            call.name,
            parameters={
                "properties": {
                    name: {"type": "string"} if isinstance(value, str) else {}
                    for name, value in (call.parsed.items() if isinstance(call.parsed, dict) else ())
                }
            },
        )
        for call in answer.tool_calls
    ]


def _says(message: Message, other: Message) -> bool:
    """Whether two messages are equal up to whitespace around their texts."""
    texts = [(each.content.strip(), each.reasoning.strip()) for each in (message, other)]
    calls = [[(call.name, call.parsed) for call in each.tool_calls] for each in (message, other)]
    return texts[0] == texts[1] and calls[0] == calls[1]
