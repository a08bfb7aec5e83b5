"""Evidence from texts: whether a tool call started an agent, and whether an agent's answer came back.

Harnesses wrap texts into their own templates, break lines and encode them as JSON; the comparison ignores
that.
"""

import json
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from harnessgym.message import ToolCall

_LEAST = 8
"""Minimum length of a text whose match is unlikely to be chance."""
_LEAST_FAR = 12
"""The same for a match in a text that need not be related."""
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_STARTS = frozenset((
    "agent", "agents", "assign", "delegate", "dispatch", "handoff", "handover", "researcher", "spawn",
    "specialist", "subagent", "task", "transfer", "worker",
))  # fmt: skip
_MANAGES = frozenset((
    "cancel", "close", "complete", "create", "finish", "get", "kill", "list", "output", "read", "resume",
    "send", "status", "stop", "todo", "todos", "update", "wait", "write",
))  # fmt: skip
_DETACHES = frozenset(("spawn", "background"))


@lru_cache(maxsize=1024)
def starts_agent(tool: str) -> bool:
    """Return whether a tool's name says that it starts an agent.

    `Task`, `spawn_agent` and `transfer_to_coder` do; `wait_agent` does not.
    """
    words = _words(tool)
    return bool(words & _STARTS) and not words & _MANAGES


def detaches(call: ToolCall) -> bool:
    """Return whether a call starts an agent in the background, so its result is not the agent's answer."""
    arguments = call.parsed
    told = isinstance(arguments, dict) and any(
        value is True for key, value in arguments.items() if _words(key) & _DETACHES
    )
    return told or bool(_words(call.name) & _DETACHES)


def texts_of(call: ToolCall) -> list[str]:
    """Return the texts in a call's arguments, longest first. Arguments that are not JSON are one text."""
    found = list[str]()
    rest = [call.parsed]
    while rest:
        value: Any = rest.pop()
        if isinstance(value, str):
            found.append(value.strip())
        elif isinstance(value, dict):
            rest.extend(value.values())
        elif isinstance(value, list):
            rest.extend(value)
    return sorted((text for text in found if text), key=len, reverse=True)


def shared(texts: Iterable[str], heard: str, *, named: bool) -> int:
    """Return the length of the longest of a call's `texts` that an agent `heard` first, or 0.

    `named`: the tool's name says that it starts agents, so shorter texts count too.
    """
    heard = _plain(heard)
    least = 3 if named else _LEAST
    found = (len(text) for text in map(_plain, texts) if len(text) >= least and text in heard)
    whole = (len(heard) for text in map(_plain, texts) if len(heard) >= _LEAST_FAR and heard in text)
    return max(*found, *whole, 0, 0)


def came_back(said: Sequence[str], result: str, *, far: bool = False) -> bool:
    """Return whether one of an agent's texts is in a `result`. `far`: the result may be unrelated."""
    least = _LEAST_FAR if far else 1
    return any(len(text) >= least and _holds(result, text) for text in said)


def _holds(result: str, text: str) -> bool:
    if text in result:
        return True
    written = (json.dumps(text, ensure_ascii=ascii_only)[1:-1] for ascii_only in (False, True))
    return any(form in result for form in written) or _plain(text) in _plain(result)


def _plain(text: str) -> str:
    return " ".join(text.split())


def _words(name: str) -> frozenset[str]:
    return frozenset(word.lower() for word in _WORD.findall(name))
