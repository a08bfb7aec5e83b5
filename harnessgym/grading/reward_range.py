"""The range of a task's reward: what its grader may give. A value outside of it is a fault and no reward.

A task declares it in its metadata, `reward_range = [-1, 1]`; the default is 0 to 1. So a result that the code
under test wrote in the grader's place gains no more than a right answer would.
"""

import math
from collections.abc import Mapping
from typing import Any

from harnessgym.errors import TaskError
from harnessgym.task import Task

KEY = "reward_range"
"""Key of a task's metadata."""
LARGEST = 1e9
"""Bound of a declared range, and of every channel but "reward". It leaves room for bytes and microseconds.
A weighted sum of such channels stays far from the largest float."""


def is_reward(value: object) -> bool:
    """Whether `value` is a finite number. True and False are not."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond every float
        return False


def reward_range(metadata: Mapping[str, Any], where: str) -> tuple[float, float]:
    """The least and the largest reward that a task declares. Raises TaskError."""
    declared = metadata.get(KEY, (0.0, 1.0))
    if not isinstance(declared, list | tuple) or len(declared) != 2 or not all(map(is_reward, declared)):
        raise TaskError(f"{where}: {KEY} is {declared!r}. Give the least and the largest reward: [0, 1].")
    low, high = map(float, declared)
    if not -LARGEST <= low < high <= LARGEST:
        raise TaskError(
            f"{where}: {KEY} is {declared!r}. The first must be less than the second, and neither beyond "
            f"{LARGEST:g}."
        )
    return low, high


def least_reward(task: Task) -> float:
    """What a wrong solution gets: 0, or the least reward of a range that goes below. Raises TaskError."""
    return min(0.0, reward_range(task.metadata, f"Task {task.id!r}")[0])
