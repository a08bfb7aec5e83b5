"""Chooses the parser of a policy: the one that reads the tool calls that its chat template writes.

A chat template shows how its model writes calls. So a call is rendered, and the grammar is the one whose
parser reads the same call. For a template that writes no calls, the tags that the tokenizer has as tokens
decide.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from harnessgym.errors import PolicyError
from harnessgym.message import Message, ToolCall
from harnessgym.registry import load
from proxies.renderers.template import TemplateRenderer

log = logging.getLogger(__name__)

AUTO = "auto"
GRAMMARS = (
    "glm",
    "hermes",
    "qwen3_coder",
    "minimax",
    "deepseek",
    "kimi",
    "gemma",
    "mistral",
    "harmony",
    "llama3",
    "pythonic",
)
"""A grammar whose tags are a part of another's comes behind it."""
_CALL = ToolCall("call_0", "find", '{"name": "red lamp", "deep": {"of": [1, true]}}')


@dataclass(frozen=True, slots=True)
class ParserChoice:
    """A policy's parser."""

    kind: Callable[..., Any]
    options: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of the parser."""
    in_reasoning: bool = False
    """Whether the generation prompt opens the reasoning."""
    no_tools: str = ""
    """Why the policy cannot be offered tools; empty if it can."""


def choose(renderer: TemplateRenderer, name: str, where: str) -> ParserChoice:
    """The parser `name` of the policy at `where`. "auto" finds it, and is one without tools if there is none.

    Raises `PolicyError` for a grammar that the chat template contradicts, or whose tags neither the template
    nor the tokenizer has, and `ConfigError` for an unknown name.
    """
    if name not in (AUTO, *GRAMMARS):
        return _made(renderer, load("parser", name))
    written = grammar_of(renderer)
    if name == AUTO:
        return _found(renderer, written, where)
    kind = load("parser", name)
    if written not in (None, name):
        raise PolicyError(
            f"{where}: its chat template writes tool calls that the parser {name!r} does not read; they are "
            f"those of {written!r}. Use parser {written!r} or {AUTO!r}."
        )
    markers: tuple[str, ...] = kind.markers()
    if written is None and markers and not any(_knows(renderer, marker) for marker in markers):
        raise PolicyError(
            f"{where}: neither its chat template nor its tokenizer has {' or '.join(markers)}, by which the "
            f"parser {name!r} knows tool calls. Use a chat template that writes such calls, or another "
            f"parser; {AUTO!r} finds the one that fits."
        )
    return _made(renderer, kind)


def _made(renderer: TemplateRenderer, kind: Callable[..., Any], no_tools: str = "") -> ParserChoice:
    """The choice of a parser. Which tags are around the reasoning does not depend on the grammar of calls: it
    has its own only if the policy knows them.
    """
    usual = "<think>", "</think>"
    own: tuple[str, str] | None = getattr(kind, "own_think", None)
    if own is None:
        return ParserChoice(kind, {}, renderer.prompt_ends_with(usual[0]), no_tools)
    think = own if _knows(renderer, own[0]) else usual
    return ParserChoice(kind, {"think": think}, renderer.prompt_ends_with(think[0]), no_tools)


def _found(renderer: TemplateRenderer, written: str | None, where: str) -> ParserChoice:
    """The choice for a policy whose template writes calls in the grammar `written`."""
    if written is not None:
        return _made(renderer, load("parser", written))
    has = renderer.tokenizer.token_to_id
    for name in GRAMMARS:
        kind = load("parser", name)
        if any(has(marker) is not None for marker in kind.markers()):
            log.warning(
                "%s: its chat template writes no tool calls; the parser %r is used, whose tags the tokenizer "
                "has.",
                where,
                name,
            )
            return _made(renderer, kind)
    return _made(
        renderer,
        load("parser", "text"),
        f"The chat template of {where} writes no tool calls in a grammar that is known "
        f"({', '.join(GRAMMARS)}). Use a template that does, name the parser that reads what the model was "
        "trained to write, or run a harness that offers no tools.",
    )


def grammar_of(renderer: TemplateRenderer) -> str | None:
    """The name of the grammar in which a chat template writes tool calls; None if it is unknown."""
    turn = renderer.written_turn(Message("assistant", "", tool_calls=(_CALL,)))
    if not turn:
        return None
    for name in GRAMMARS:
        parser = load("parser", name)(
            renderer.table, call_prefix="call_", stop_token_ids=renderer.stop_token_ids
        )
        parser.feed(turn)
        calls = parser.finish().tool_calls
        if [(call.name, call.parsed) for call in calls] == [(_CALL.name, _CALL.parsed)]:
            return name
    return None


def _knows(renderer: TemplateRenderer, marker: str) -> bool:
    return marker in renderer.source or renderer.tokenizer.token_to_id(marker) is not None
