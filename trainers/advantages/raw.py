"""Rewards as they are: for losses that choose a baseline themselves."""

import numpy as np
import numpy.typing as npt

from trainers.advantages.group_relative import Float64Array
from trainers.algorithms import AlgorithmRow

REWARD = AlgorithmRow(
    "advantage", "reward", "A = r, for baseline = minimum_variance", "Williams 1992", "source", "the rewards themselves"
)  # fmt: skip


def reward(rewards_G: npt.ArrayLike) -> Float64Array:
    """The rewards, float64 [G]; zeros for a group of equal ones, which is left out of the step as one without
    a signal.

    Nothing is subtracted: `baseline = "minimum_variance"` does that for the whole batch, without the groups
    that are left out.
    """
    rewards: Float64Array = np.array(rewards_G, dtype=np.float64)
    return rewards if (rewards != rewards[0]).any() else np.zeros_like(rewards)
