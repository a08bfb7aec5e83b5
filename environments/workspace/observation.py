"""Observations: the output of an action, the diff of the workspace, and the status of the action."""

from enum import IntEnum
from typing import Any, TypedDict

from gymnasium.spaces import Dict, Discrete, Space

from harnessgym.gym.text_space import ShortText, fit

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
