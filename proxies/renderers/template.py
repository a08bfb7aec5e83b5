"""Prompts from a model folder's chat template, and continuations that keep the sampled tokens.

A continuation is a suffix: what the template writes after the end of an assistant turn when more messages
follow. It is rendered in a made-up conversation, and used only if different conversations are shown to give
the same suffix.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from harnessgym.errors import PolicyError
from harnessgym.message import Message, ToolCall, ToolSpec, context_digest
from harnessgym.tokens import PieceTokens, TokenIds
from proxies.detokenizer import TokenTable
from proxies.dialect import Problem, RequestProblem
from proxies.renderers.literals import Literals
from proxies.renderers.long_texts import encode_text, tokenised
from proxies.renderers.message_form import MessageForm


class _Generation(Extension):
    """`{% generation %}` marks assistant text for trainers; for rendering it is transparent."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """The nodes between the tags."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def template_environment(now: datetime) -> ImmutableSandboxedEnvironment:
    """A Jinja environment in which templates see the fixed time `now`.

    A prompt that tells the time would otherwise change between the calls of a session.
    """
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = now.strftime
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without the HTML escapes of Jinja's own filter."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)


_SETTINGS = 64
_MARK = "hgmark7c1e"
"""The text of the made-up answer; no template contains it."""


@dataclass(frozen=True, slots=True)
class _Setting:
    """A made-up conversation whose last turn stands for the sampled one."""

    before: tuple[Message, ...]
    turn: Message


class TemplateRenderer:
    """One model folder's chat template and tokenizer.

    `stop_token_ids` end an assistant turn. `source` is the template. `bos` is the token that begins a raw
    text; None if the tokenizer adds none.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: str,
        tokens: Mapping[str, str] | None = None,
        where: str = "template",
    ) -> None:
        """`tokens` maps a role such as `eos_token` to its special token.

        Raises `PolicyError` if the template does not compile.
        """
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self.tokenizer = tokenizer
        self.tokens = dict(tokens or {})
        self.table = TokenTable(tokenizer)
        try:
            self._template = template_environment(datetime.now(UTC)).from_string(template)
        except TemplateError as error:
            raise PolicyError(f"{where}: the chat template does not compile: {error}.") from error
        self.source = template
        self._form = MessageForm()
        self._form = MessageForm.of(template, lambda messages: self._fill(list(messages), [], generate=False))
        self._known_settings: dict[tuple[_Setting, str], tuple[str, str]] = {}
        self._proofs: dict[tuple[object, ...], bool | None] = {}
        self._writes_ids = self._depends_on_ids()
        self._turn_ends = self._find_turn_ends()
        known = [token for token in self._turn_ends.values() if token is not None]
        self._end_texts = {token: self.decode([token]) for token in known}
        eos = tokenizer.token_to_id(self.tokens.get("eos_token", ""))
        self.stop_token_ids: tuple[int, ...] = tuple(sorted({*known, *([] if eos is None else [eos])}))
        prompt = self._prompt = self._smallest_prompt()
        self._literals = Literals(tokenizer, prompt + "".join(self.tokens.values()))
        bos = tokenizer.token_to_id(self.tokens.get("bos_token", ""))
        self.bos: int | None = bos if tokenizer.encode("", add_special_tokens=True).ids[:1] == [bos] else None

    @classmethod
    def from_folder(cls, folder: Path) -> "TemplateRenderer":
        """The renderer of a Hugging Face model folder. Raises `PolicyError` for a missing or broken file."""
        try:
            tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
            path = folder / "tokenizer_config.json"
            config = json.loads(path.read_text()) if path.exists() else {}
            path = folder / "chat_template.jinja"
            template = path.read_text() if path.exists() else _template_of(config)
            path = folder / "generation_config.json"
            generation = json.loads(path.read_text()) if path.exists() else {}
        except Exception as error:  # tokenizers raises plain Exception
            raise PolicyError(f"{folder}: cannot read the tokenizer or chat template: {error}") from error
        if not template:
            raise PolicyError(f"{folder}: there is no chat template; add chat_template.jinja.")
        renderer = cls(tokenizer, template, _special_tokens(config), str(folder))
        if config.get("add_bos_token") is not None:
            renderer.bos = (
                tokenizer.token_to_id(renderer.tokens.get("bos_token", ""))
                if config["add_bos_token"]
                else None
            )
        ends = generation.get("eos_token_id")
        more = ends if isinstance(ends, list) else [] if ends is None else [ends]
        renderer.stop_token_ids = tuple(sorted({*renderer.stop_token_ids, *more}))
        return renderer

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> PieceTokens:
        """The prompt. Raises `RequestProblem` for a conversation that the template refuses."""
        try:
            return self._literals.encode(self._marked(messages, tools))
        except (TemplateError, TypeError, ValueError) as error:
            raise RequestProblem(
                Problem("unsupported", f"The model's chat template refuses this conversation: {error}")
            ) from error

    def extend(
        self, ids: Sequence[int], new_messages: Sequence[Message], tools: Sequence[ToolSpec]
    ) -> TokenIds | None:
        """The tokens to append to `ids`; None if the turn was cut off or the template cannot be continued."""
        new_messages = self._answering(ids, new_messages)
        answered = _leading_results(new_messages)
        if answered and not self._writes_ids:
            # Ids differ from turn to turn: with the same ones everywhere, settings are rendered once.
            new_messages = [*map(_with_plain_id, range(answered), new_messages), *new_messages[answered:]]
        end = self._turn_ends[min(answered, 1)]
        if not ids or end is None or ids[-1] not in {end, *self.stop_token_ids} or not new_messages:
            return None
        kinds = tuple(
            (message.role, bool(message.tool_calls), bool(message.reasoning)) for message in new_messages
        )
        key = (kinds, context_digest(tuple(tools)))
        if key not in self._proofs:
            self._proofs[key] = self._prove(new_messages, tools, answered)
        needs_tools = self._proofs[key]
        if needs_tools is None:
            return None
        suffix = self._suffix(
            _settings(new_messages, answered)[0], new_messages, tools if needs_tools else ()
        )
        if suffix is None:
            return None
        # Encoded after the end of turn: an added token splits the text, so what comes before it cannot
        # change the tokens of the suffix.
        encoded = self._literals.encode(self._end_texts[end] + suffix).whole()
        if not encoded or encoded[0] != end:
            return None
        # A turn may end in the token that also opens the next turn; it must not be written twice.
        last = ids[-1]
        return encoded[2:] if last != end and encoded[1:2] == [last] else encoded[1:]

    def _answering(self, ids: Sequence[int], new_messages: Sequence[Message]) -> Sequence[Message]:
        """New messages with the ids that the sampled turn at the end of `ids` gave its calls."""
        if not self._form.named_ids or not new_messages or new_messages[0].role != "tool":
            return new_messages
        before = (at for at in range(len(ids) - 2, -1, -1) if ids[at] in self.stop_token_ids)
        return self._form.answering(new_messages, self.decode(ids[next(before, 0) :]))

    def write(self, answer: Message | str) -> list[int] | None:
        """The tokens of an assistant turn with this answer.

        None if the template does not write the turn directly after its generation prompt.
        """
        calls = 0 if isinstance(answer, str) else min(len(answer.tool_calls), 1)
        token = self._turn_ends[calls]
        if token is None:
            return None
        end = self.decode([token])
        if isinstance(answer, str):
            return self.encode(answer + end)
        before = [Message("user", "a")]
        try:
            prompt = self.text(before)
            whole = self._marked([*before, answer], (), generate=False)
        except (TemplateError, TypeError, ValueError):
            return None
        turn_text, separator, _ = whole.removeprefix(prompt).rpartition(end)
        if not separator or not whole.startswith(prompt):
            return None
        return list(self._literals.encode(turn_text + end))

    @property
    def opens_reasoning(self) -> bool:
        """Whether the generation prompt ends inside a `<think>`."""
        return self.prompt_ends_with("<think>")

    def prompt_ends_with(self, tag: str) -> bool:
        """Whether the generation prompt ends with a tag, but for whitespace."""
        return self._prompt.rstrip().endswith(tag)

    def written_turn(self, answer: Message) -> list[int] | None:
        """The tokens that the template writes for an assistant turn in a conversation, behind what it has in
        common with the generation prompt. None if the template refuses the turn.
        """
        before = [Message("user", "a")]
        try:
            prompt = self.encode(self.text(before))
            whole = self.encode(self.text([*before, answer], generate=False))
        except (TemplateError, TypeError, ValueError):
            return None
        differs = (at for at, (one, other) in enumerate(zip(prompt, whole, strict=False)) if one != other)
        return whole[next(differs, len(prompt)) :]

    def text(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), *, generate: bool = True
    ) -> str:
        """The prompt as text; `generate` opens the next assistant turn."""
        return self._fill(
            [message.to_template() for message in messages], [tool.to_template() for tool in tools], generate
        )

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids, control tokens included."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False))

    def opening(self, text: str) -> tuple[int, ...]:
        """The token to put before a raw text: `bos`, unless there is none or the text begins with it."""
        return () if self.bos is None or text.startswith(self.tokens["bos_token"]) else (self.bos,)

    def encode(self, text: str) -> list[int]:
        """The tokens of text, without special tokens added. May raise `LongText`."""
        return list(tokenised(text, self._encode))

    def _encode(self, text: str) -> list[int]:
        return encode_text(self.tokenizer, text)

    def written(self, ids: Sequence[int]) -> bytes:
        """The bytes of token ids, control tokens included."""
        return b"".join([self.table[token] for token in ids])

    def _marked(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], *, generate: bool = True
    ) -> str:
        """The prompt as text with a mark inside quoted control tokens.

        Without marks if they would change what the template writes.
        """
        template_messages = [message.to_template() for message in messages]
        offered = [tool.to_template() for tool in tools]
        plain = self._fill(template_messages, offered, generate)
        marked = (self._literals.mark(template_messages), self._literals.mark(offered))
        if marked == (template_messages, offered):
            return plain
        # Templates may inspect texts, e.g. split at `</think>`: then marks lead to another prompt.
        text = self._fill(*marked, generate)
        return text if self._literals.unmark(text) == plain else plain

    def _fill(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]], generate: bool) -> str:
        return self._template.render(
            **self.tokens,
            messages=self._form.apply(messages),
            tools=tools or None,
            documents=None,
            add_generation_prompt=generate,
        )

    def _depends_on_ids(self) -> bool:
        """Whether the ids of calls change the text of one call or of two, and of their results."""
        if self._form.named_ids:  # it gets other ids than it is given
            return True
        texts = set()
        for one, other in (("a0", "a1"), ("z9y8x7w6v", "b0b1b2b3b")):
            results = [Message("tool", "A.", tool_call_id=call, name="f") for call in (one, other)]
            try:
                texts.add(
                    self.text([Message("user", "a"), _answer("", _calls([one])), results[0], _answer("", ())])
                    + self.text([Message("user", "a"), _answer("", _calls([one, other])), *results])
                )
            except (TemplateError, TypeError, ValueError):
                return True
        return len(texts) > 1

    def _smallest_prompt(self) -> str:
        try:
            return self.text([Message("user", _MARK)])
        except (TemplateError, TypeError, ValueError):
            return ""

    def _find_turn_ends(self) -> dict[int, int | None]:
        """The special tokens that end an assistant turn without calls and with one; None if there is none."""
        plain = self._special_after(())
        calling = self._special_after(_calls(["a0"]))
        # Tags of calls may be special tokens too, so the end is the last one, but for what follows the end of
        # every turn.
        after = plain[1:]
        if after and calling[-len(after) :] == after:
            calling = calling[: -len(after)]
        return {0: plain[0] if plain else None, 1: calling[-1] if calling else None}

    def _special_after(self, calls: tuple[ToolCall, ...]) -> list[int]:
        """The special tokens that the template writes after the content of a turn."""
        try:
            text = self.text([Message("user", "a"), _answer("", calls)], generate=False)
        except (TemplateError, TypeError, ValueError):
            return []
        added = self.tokenizer.get_added_tokens_decoder()
        tail = self.encode(text.rpartition(_MARK)[2])
        return [token for token in tail if token in added and added[token].special]

    def _prove(self, new: Sequence[Message], tools: Sequence[ToolSpec], answered: int) -> bool | None:
        """Whether the suffix depends on the tools; None if it depends on the earlier conversation."""
        settings = _settings(new, answered)
        suffixes = {self._suffix(setting, new, tools) for setting in settings}
        # The sampled turn may have made a call that the harness ignored, so that case must agree too.
        if answered == 0:
            suffixes.add(
                self._suffix(_Setting(settings[0].before, _answer("", _calls(["a0"]))), new, tools)
                or next(iter(suffixes))
            )
        if len(suffixes) != 1 or None in suffixes:
            return None
        return {self._suffix(setting, new, ()) for setting in settings} != suffixes

    def _setting_texts(self, setting: _Setting, tools: Sequence[ToolSpec]) -> tuple[str, str]:
        """A setting's text without its last turn and with it. Cached: most requests use the same few."""
        key = (setting, context_digest(tuple(tools)))
        if key not in self._known_settings:
            if len(self._known_settings) >= _SETTINGS:
                self._known_settings.clear()
            before = self._marked(setting.before, tools, generate=False)
            self._known_settings[key] = (
                before,
                self._marked([*setting.before, setting.turn], tools, generate=False),
            )
        return self._known_settings[key]

    def _suffix(self, setting: _Setting, new: Sequence[Message], tools: Sequence[ToolSpec]) -> str | None:
        """The text that follows the end of the setting's turn.

        None if the new messages change what the template writes before that turn.
        """
        token = self._turn_ends[min(len(setting.turn.tool_calls), 1)]
        if token is None:
            return None
        end = self._end_texts[token]
        try:
            before, ended = self._setting_texts(setting, tools)
            full = self._marked([*setting.before, setting.turn, *new], tools)
        except (TemplateError, TypeError, ValueError):
            return None
        if not ended.startswith(before) or not full.startswith(before):
            return None
        # A template may leave out what is said beside calls.
        tail, suffix = (text[len(before) :].rpartition(_MARK)[2].partition(end)[2] for text in (ended, full))
        return suffix if suffix.startswith(tail) and suffix else None


def _settings(new: Sequence[Message], answered: int) -> list[_Setting]:
    """Two conversations that `new` could continue, as different as possible."""
    ids = [message.tool_call_id or f"a{index}" for index, message in enumerate(new[:answered])]
    short = _answer("", _calls(ids))
    long = _answer(" and more", tuple(ToolCall(call, "get", '{"key": ["value", 2]}') for call in ids))
    earlier = (
        Message("system", "Be brief."),
        Message("user", "First."),
        Message("assistant", "", tool_calls=(ToolCall("b00000000", "get", '{"key": 1}'),)),
        Message("tool", "One.", tool_call_id="b00000000", name="get"),
        Message("assistant", "Done."),
        Message("user", "Second?\nThird."),
    )
    return [_Setting((Message("user", "a"),), short), _Setting(earlier, long)]


def _answer(more: str, calls: tuple[ToolCall, ...]) -> Message:
    return Message("assistant", _MARK + more, tool_calls=calls)


def _calls(ids: Sequence[str]) -> tuple[ToolCall, ...]:
    return tuple(ToolCall(call, "f", "{}") for call in ids)


def _with_plain_id(index: int, result: Message) -> Message:
    return replace(result, tool_call_id=f"a{index}")


def _leading_results(messages: Sequence[Message]) -> int:
    """The number of tool results that the messages begin with; the sampled turn made as many calls."""
    return next((index for index, message in enumerate(messages) if message.role != "tool"), len(messages))


def _template_of(config: Mapping[str, Any]) -> str:
    """The chat template in a tokenizer config; of several, the one named `default`."""
    template = config.get("chat_template") or ""
    if isinstance(template, list):
        named = {str(item["name"]): str(item["template"]) for item in template}
        return named.get("default", "")
    return str(template)


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """Special tokens by role; each is written as text or as an object with `content`."""
    values = {
        name: value
        for name, value in config.items()
        if name.endswith("_token") and isinstance(value, str | dict)
    }
    return {
        name: value if isinstance(value, str) else str(value["content"]) for name, value in values.items()
    }
