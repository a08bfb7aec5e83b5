"""Whether one agent's words are found in another's: that a tool call started an agent, that an agent's answer
came back.

Harnesses put texts into frames of their own, wrap lines, and write them as JSON; none of that counts.
"""

import json
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from harnessgym.message import ToolCall

_LEAST = 8
"""Characters of a text that is found by more than chance."""
_LEAST_FAR = 12
"""The same where it may be anywhere."""
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_STARTS = frozenset((
    "agent", "agents", "assign", "delegate", "dispatch", "handoff", "handover", "researcher", "spawn", "specialist", "subagent",
    "task", "transfer", "worker",
))  # fmt: skip
_MANAGES = frozenset((
    "cancel", "close", "complete", "create", "finish", "get", "kill", "list", "output", "read", "resume", "send", "status",
    "stop", "todo", "todos", "update", "wait", "write",
))  # fmt: skip
_DETACHES = frozenset(("spawn", "background"))


@lru_cache(maxsize=1024)
def starts_agent(tool: str) -> bool:
    """Whether a tool's name says that it starts an agent: `Task`, `spawn_agent`, `transfer_to_coder`, but
    not `wait_agent`.
    """
    words = _words(tool)
    return bool(words & _STARTS) and not words & _MANAGES


def detaches(call: ToolCall) -> bool:
    """Whether a call that starts an agent says that its result comes at once, and not what the agent
    answers.
    """
    arguments = call.parsed
    told = isinstance(arguments, dict) and any(
        value is True for key, value in arguments.items() if _words(key) & _DETACHES
    )
    return told or bool(_words(call.name) & _DETACHES)


def texts_of(call: ToolCall) -> list[str]:
    """The texts in a call's arguments, the longest first. Arguments that are no JSON are one text."""
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
    """How much of a call's `texts` an agent `heard` first: characters of the longest that is found, 0 for
    none.

    `named`: the tool's name says that it starts agents, so that shorter texts count too.
    """
    heard = _plain(heard)
    least = 3 if named else _LEAST
    found = (len(text) for text in map(_plain, texts) if len(text) >= least and text in heard)
    whole = (len(heard) for text in map(_plain, texts) if len(heard) >= _LEAST_FAR and heard in text)
    return max(*found, *whole, 0, 0)


def came_back(said: Sequence[str], result: str, *, far: bool = False) -> bool:
    """Whether what an agent said is in a `result`. `far`: a result that may be of anything."""
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
