"""Continuations by the `renderers` package, for model families that a suffix cannot continue.

In some formats an assistant turn ends only where the next turn begins (GLM), or it ends differently once
other turns follow (gpt-oss). The package has code for each such family. It is used only if the folder's own
chat template writes the same tokens for conversations with every kind of message. Whole prompts always come
from the folder's template.
"""

import importlib
import importlib.util
import json
import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from tokenizers import Tokenizer

from harnessgym.errors import PolicyError
from harnessgym.message import Message, ToolCall, ToolSpec
from harnessgym.tokens import TokenIds
from proxies.renderers.long_texts import encode_text, tokenised
from proxies.renderers.template import TemplateRenderer

log = logging.getLogger(__name__)

_GLM_5 = ("glm-5", "glm-5.1", "glm-5.3")
_LAGUNA = ("laguna-xs.2", "laguna-m.1", "laguna-xs-2.1", "laguna-s-2.1")
_QWEN_3_5 = ("qwen3.5", "qwen3.6", "qwen3.8")
FAMILIES: dict[str, tuple[str, ...]] = {
    "deepseek_v3": ("deepseek-v3", "deepseek-r1"),
    "gemma4": ("gemma4",),
    "gemma4_text": ("gemma4",),
    "glm4_moe": ("glm-4.5", *_GLM_5),
    "glm4_moe_lite": _GLM_5,
    "glm_moe_dsa": _GLM_5,
    "gpt_oss": ("gpt-oss",),
    "hy_v3": ("hy3",),
    "kimi_k2": ("kimi-k2", "kimi-k2.5"),
    "kimi_k25": ("kimi-k2.5",),
    "laguna": _LAGUNA,
    "llama": ("llama-3",),
    "minimax_m2": ("minimax-m2",),
    "nemotron_h": ("nemotron-3", "nemotron-3-ultra", "nemotron-3.5"),
    "qwen3": ("qwen3", "prime-qwen3"),
    "qwen3_moe": ("qwen3",),
    "qwen3_next": ("qwen3",),
    "qwen3_vl": ("qwen3-vl",),
    "qwen3_vl_moe": ("qwen3-vl",),
    "qwen3_5": _QWEN_3_5,
    "qwen3_5_moe": _QWEN_3_5,
    "qwen3_5_text": _QWEN_3_5,
    "qwen3_5_moe_text": _QWEN_3_5,
}
"""Maps the `model_type` of a folder's config to the package's names of the candidate families."""


class Family(Protocol):
    """The part of the package's renderer interface that is used here."""

    def render_ids(
        self,
        messages: list[dict[str, Any]],
        *,
        tools: list[dict[str, Any]] | None,
        add_generation_prompt: bool,
    ) -> list[int]:
        """The tokens of a conversation."""
        ...

    def bridge_to_next_turn(
        self,
        previous_prompt_ids: list[int],
        previous_completion_ids: list[int],
        new_messages: list[dict[str, Any]],
        *,
        tools: list[dict[str, Any]] | None,
    ) -> Any:
        """An object whose `token_ids` are the next prompt; None if the turn cannot be continued."""
        ...

    def get_stop_token_ids(self) -> list[int]:
        """The tokens that end a turn."""
        ...


class FamilyRenderer(TemplateRenderer):
    """A folder's template whose turns are continued by the package's code for its family.

    Where the package cannot continue a turn, a proven suffix is tried.
    """

    family: Family
    _opening: list[int]

    @classmethod
    def from_folder(cls, folder: Path) -> "FamilyRenderer":
        """The renderer of a model folder.

        Raises `PolicyError` unless the package knows the family and writes the same tokens as the template.
        """
        renderer = super().from_folder(folder)
        assert isinstance(renderer, cls)
        names = FAMILIES.get(_model_type(folder), ())
        if not names:
            raise PolicyError(
                f"{folder}: renderers has no family for the model_type in config.json; use renderer "
                "'template'."
            )
        if importlib.util.find_spec("renderers") is None:
            raise PolicyError(
                "The renderers package is not installed; pip install renderers, or use renderer 'template'."
            )
        for name in names:
            if renderer.follow(name):
                return renderer
        raise PolicyError(
            f"{folder}: its template does not agree with renderers' {', '.join(names)}; use renderer "
            "'template'."
        )

    def extend(
        self, ids: Sequence[int], new_messages: Sequence[Message], tools: Sequence[ToolSpec]
    ) -> TokenIds | None:
        """The tokens to append to `ids`; None if the turn was cut off or cannot be continued."""
        begun = _rfind(ids, self._opening)
        if not ids or ids[-1] not in self.stop_token_ids or begun is None or self._quotes(new_messages):
            return super().extend(ids, new_messages, tools)
        new_messages = self._answering(ids, new_messages)
        previous_ids = list(ids)
        bridged = self.family.bridge_to_next_turn(
            previous_ids[:begun],
            previous_ids[begun:],
            self._form.of_ids().apply([message.to_template() for message in new_messages]),
            tools=[tool.to_template() for tool in tools] or None,
        )
        # Sampled tokens must stay as they are: a bridge that rewrites any of them is not used.
        if bridged is None or list(bridged.token_ids[: len(previous_ids)]) != previous_ids:
            return super().extend(ids, new_messages, tools)
        return list(bridged.token_ids[len(previous_ids) :])

    def follow(self, name: str) -> bool:
        """Adopt a family's code. Returns False if it does not agree with the template."""
        package, configs = (importlib.import_module(module) for module in ("renderers", "renderers.configs"))
        try:
            config = type(configs.config_from_name(name))(thinking_retention="all")
            family: Family = package.create_renderer(_Adapter(self), config)
            agrees = all(self._agrees(family, *shown) for shown in _CONVERSATIONS)
        # Code of another package: with a tokenizer of another family it may raise anything.
        except Exception as error:  # noqa: BLE001
            log.info("The family %s cannot use this tokenizer: %s", name, error)
            return False
        if agrees:
            self.family = family
            with_prompt, without = (
                family.render_ids(
                    [{"role": "user", "content": "a"}], tools=None, add_generation_prompt=prompt
                )
                for prompt in (True, False)
            )
            # The tokens that open an assistant turn: `extend` finds the last turn in a prompt by them.
            self._opening = with_prompt[len(without) :]
            self.stop_token_ids = tuple(sorted({*self.stop_token_ids, *family.get_stop_token_ids()}))
        return agrees

    def _agrees(self, family: Family, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> bool:
        template_messages = self._form.of_ids().apply([message.to_template() for message in messages])
        offered = [tool.to_template() for tool in tools]
        return family.render_ids(
            template_messages, tools=offered or None, add_generation_prompt=True
        ) == self.render(messages, tools)

    def _quotes(self, messages: Sequence[Message]) -> bool:
        """Whether messages quote control tokens, which the package would take for real ones."""
        template_messages = [message.to_template() for message in messages]
        return self._literals.mark(template_messages) != template_messages


class AutoRenderer:
    """Chooses the template alone if it can prove its continuations, else the family's code."""

    @classmethod
    def from_folder(cls, folder: Path) -> TemplateRenderer:
        """The renderer of a model folder. Raises `PolicyError` for a missing or broken file."""
        renderer = TemplateRenderer.from_folder(folder)
        if _continues(renderer) or _model_type(folder) not in FAMILIES:
            return renderer
        try:
            return FamilyRenderer.from_folder(folder)
        except PolicyError as error:
            log.warning(
                "Every call of this policy starts a branch: its template cannot be continued, and %s", error
            )
            return renderer


class _Adapter:
    """Gives the package a tokenizer with the transformers methods it expects."""

    name_or_path = ""
    unk_token_id = None

    def __init__(self, renderer: TemplateRenderer) -> None:
        self._tokenizer: Tokenizer = renderer.tokenizer
        self.eos_token_id = renderer.tokenizer.token_to_id(renderer.tokens.get("eos_token", ""))

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        return list(tokenised(text, self._with_special_tokens if add_special_tokens else self._plain))

    def _plain(self, text: str) -> list[int]:
        return encode_text(self._tokenizer, text)

    def _with_special_tokens(self, text: str) -> list[int]:
        return encode_text(self._tokenizer, text, add_special_tokens=True)

    def decode(self, ids: Any, skip_special_tokens: bool = False, **_: Any) -> str:
        token_ids = [ids] if isinstance(ids, int) else list(ids)
        return str(self._tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens))

    def convert_tokens_to_ids(self, tokens: Any) -> Any:
        if isinstance(tokens, str):
            return self._tokenizer.token_to_id(tokens)
        return [self._tokenizer.token_to_id(token) for token in tokens]


def _model_type(folder: Path) -> str:
    try:
        return str(json.loads((folder / "config.json").read_text()).get("model_type", ""))
    except (OSError, ValueError):
        return ""


def _continues(renderer: TemplateRenderer) -> bool:
    """Whether user messages and tool results can be appended to a sampled turn."""
    turn = renderer.written_turn(Message("assistant", "", tool_calls=(ToolCall("a0", "f", "{}"),))) or []
    while turn and turn[-1] in renderer.stop_token_ids:
        turn.pop()
    follow = ([Message("user", "a")], [Message("tool", "a", tool_call_id="a0")])
    return all(
        any(renderer.extend([*turn, end], new, ()) is not None for end in renderer.stop_token_ids)
        for new in follow
    )


def _rfind(ids: Sequence[int], part: Sequence[int]) -> int | None:
    """The index just after the last occurrence of `part`; None if there is none."""
    width = len(part)
    wanted = list(part)
    ends = range(len(ids), width - 1, -1)
    return next(
        (end for end in ends if ids[end - 1] == wanted[-1] and list(ids[end - width : end]) == wanted), None
    )


_TOOLS = (
    ToolSpec(
        "find",
        "Find it.",
        {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
    ),
)
_FIND = ToolCall("call_0", "find", '{"name": "red lamp", "deep": {"of": [1, true]}}')
_BRIEF = Message("system", "Be brief.")
_ASKED = Message("user", "What is it?\nTell me.")
_RESULT = Message("tool", '{"id": "Q7"}', tool_call_id="call_0", name="find")
_LOOKED = Message("assistant", "Looking.", tool_calls=(_FIND,))
_THOUGHT = Message("assistant", "", reasoning="I must look.", tool_calls=(_FIND, replace(_FIND, id="call_1")))
_CONVERSATIONS: tuple[tuple[tuple[Message, ...], tuple[ToolSpec, ...]], ...] = (
    ((_ASKED,), ()),
    ((_BRIEF, _ASKED, Message("assistant", "47"), _ASKED), ()),
    ((_BRIEF, _ASKED, _LOOKED, _RESULT), _TOOLS),
    ((_BRIEF, _ASKED, _THOUGHT, _RESULT, replace(_RESULT, tool_call_id="call_1")), _TOOLS),
    (
        (
            _ASKED,
            Message("assistant", "47", reasoning="Counting."),
            _ASKED,
            _LOOKED,
            _RESULT,
            Message("user", "And?"),
        ),
        _TOOLS,
    ),
)
"""The conversations, each with its tools, on which a family and a template must agree."""
