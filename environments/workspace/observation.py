"""What is seen after an action: what was said, how the workspace differs from its beginning, and how the
action went.
"""

from enum import IntEnum
from typing import Any, TypedDict

from gymnasium.spaces import Dict, Discrete, Space

from harnessgym.gym.text_space import ShortText, fit

OUTPUT = 8_192
"""Characters of output, at most."""
DIFF = 8_192
"""Characters of the difference, at most."""


class ActionStatus(IntEnum):
    """How the last action went."""

    READY = 0
    """There was none: the episode begins, and the output is the task's instruction."""
    DONE = 1
    """It did what it should; a command ended with exit code 0."""
    FAILED = 2
    """A command ended with another code or by a signal; a file could not be written, or the place to edit
    not found."""
    TIMED_OUT = 3
    """A command was killed because its time was up."""
    MISREAD = 4
    """It was no action."""
    SUBMITTED = 5
    """The episode has ended, and what was in the workspace was judged."""
    STOPPED = 6
    """The episode has ended for other reasons, and nothing was judged."""


class Observation(TypedDict):
    """See `SPACE`."""

    output: str
    """The instruction, a command's standard output and error as they came, or a sentence."""
    diff: str
    """Unified, against the workspace as the agent found it."""
    status: int


def space() -> Space[Any]:
    """The space of observations."""
    return Dict({"output": ShortText(OUTPUT), "diff": ShortText(DIFF), "status": Discrete(len(ActionStatus))})


def observation(output: str, diff: str, status: ActionStatus, missing: int = 0) -> Observation:
    """One that lies in the space, whatever the texts are. `missing` bytes of output were lost before it."""
    return Observation(output=fit(output, OUTPUT, missing), diff=fit(diff, DIFF), status=int(status))
