r"""The actions of an agent, each one JSON object, and the observations that answer them:

    {"run": "pytest -q"}                                  a command for `sh`, in the workspace
    {"write": "src/a.py", "text": "x = 1\n"}               a whole file
    {"edit": "src/a.py", "old": "x = 1", "new": "x = 2"}  replaces the only occurrence of `old`
    {"submit": true}                                      ends the episode and grades the workspace

Any other text is an action that does nothing. Its observation says what is wrong with it. An observation
has the output of an action, the diff of the workspace, and the status of the action.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, TypedDict

import numpy as np
from gymnasium.spaces import Dict, Discrete, Space
from numpy.typing import NDArray

from harnessgym.gym.text_space import ShortText, fit

LONGEST = 32_768
"""Longest action, in characters."""
_COMMAND_BYTES = 100_000
"""Longest command. The kernel's limit for one argument is 128 KiB."""
_GRAMMAR = (
    'An action is one JSON object: {"run": COMMAND}, {"write": PATH, "text": TEXT}, '
    '{"edit": PATH, "old": TEXT, "new": TEXT} or {"submit": true}.'
)
_SAMPLED = 48
"""Longest sampled argument, in characters."""


@dataclass(frozen=True, slots=True)
class RunAction:
    """A command for `sh`."""

    command: str


@dataclass(frozen=True, slots=True)
class Write:
    """A file and its whole new text."""

    path: str
    text: str


@dataclass(frozen=True, slots=True)
class EditAction:
    """A replacement of text that occurs exactly once in a file."""

    path: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class SubmitAction:
    """Ends the episode."""


@dataclass(frozen=True, slots=True)
class Misread:
    """A text that is no action, and why."""

    why: str


Action = RunAction | Write | EditAction | SubmitAction
_KEYS: Mapping[str, tuple[str, ...]] = {"run": (), "write": ("text",), "edit": ("old", "new"), "submit": ()}


def parse(text: str) -> Action | Misread:
    """Parses a text into an action. Never raises."""
    try:
        payload = json.loads(text)
    except (ValueError, RecursionError) as error:
        return Misread(f"This is not JSON ({error}). {_GRAMMAR}")
    if not isinstance(payload, dict):
        return Misread(f"This is not a JSON object. {_GRAMMAR}")
    kinds = [kind for kind in _KEYS if kind in payload]
    if len(kinds) != 1 or set(payload) != {kinds[0], *_KEYS[kinds[0]]}:
        return Misread(f"The keys {sorted(payload)} make no action. {_GRAMMAR}")
    if kinds == ["submit"]:
        return SubmitAction() if payload["submit"] is True else Misread(f"`submit` must be true. {_GRAMMAR}")
    problem = next((why for key, value in payload.items() if (why := _unusable(key, value))), None)
    if problem is not None:
        return Misread(f"{problem} {_GRAMMAR}")
    return _made(kinds[0], payload)


def _made(kind: str, fields: Mapping[str, str]) -> Action:
    if kind == "run":
        return RunAction(fields["run"])
    if kind == "write":
        return Write(fields["write"], fields["text"])
    return EditAction(fields["edit"], fields["old"], fields["new"])


def _unusable(key: str, value: Any) -> str | None:
    if not isinstance(value, str):
        return f"`{key}` must be a string."
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        return f"`{key}` holds half of a character (a lone surrogate)."
    if key in ("run", "write", "edit") and ("\0" in value or not value.strip()):
        return f"`{key}` is empty, or holds a NUL."
    if key == "old" and not value:
        return "`old` is empty."
    if key == "run" and size > _COMMAND_BYTES:
        return f"`run` has more than {_COMMAND_BYTES} bytes; write a script to a file."
    return None


class ActionSpace(ShortText):
    """The space of actions. Without a mask it samples valid actions and, one time in five, other text."""

    def __init__(self, seed: int | np.random.Generator | None = None) -> None:
        super().__init__(LONGEST, seed)

    def sample(
        self,
        mask: tuple[int | None, NDArray[np.int8] | None] | None = None,
        probability: tuple[int | None, NDArray[np.float64] | None] | None = None,
    ) -> str:
        """See `Text.sample`."""
        if mask is not None or probability is not None:
            return super().sample(mask, probability)
        kind = (*_KEYS, "")[int(self.np_random.integers(len(_KEYS) + 1))]
        if not kind:
            return self.words(1, _SAMPLED) + "?"
        if kind == "submit":
            return json.dumps({"submit": True})
        return json.dumps({key: self.words(1, _SAMPLED) for key in (kind, *_KEYS[kind])})


OUTPUT = 8_192
"""Longest output, in characters."""
DIFF = 8_192
"""Longest diff, in characters."""


class ActionStatus(IntEnum):
    """The status of the last action."""

    READY = 0
    """There was none: the episode begins, and the output is the task's instruction."""
    DONE = 1
    """It succeeded; a command ended with exit code 0."""
    FAILED = 2
    """A command ended with another code or by a signal, a file could not be written, or the text to edit was
    not found."""
    TIMED_OUT = 3
    """A command was killed because its time was up."""
    MISREAD = 4
    """The text was no action."""
    SUBMITTED = 5
    """The episode has ended, and the workspace was graded."""
    STOPPED = 6
    """The episode has ended for another reason, and nothing was graded."""


class Observation(TypedDict):
    """An observation. See `space`."""

    output: str
    """The instruction, a command's standard output and error interleaved, or a sentence."""
    diff: str
    """Unified diff against the initial workspace."""
    status: int


def space() -> Space[Any]:
    """The space of observations."""
    return Dict({"output": ShortText(OUTPUT), "diff": ShortText(DIFF), "status": Discrete(len(ActionStatus))})


def observation(output: str, diff: str, status: ActionStatus, missing: int = 0) -> Observation:
    """An observation inside the space, for any texts. `missing` bytes of earlier output were dropped."""
    return Observation(output=fit(output, OUTPUT, missing), diff=fit(diff, DIFF), status=int(status))
