"""The rewards themselves as advantages, for updates that choose a baseline."""

import numpy as np
import numpy.typing as npt

from trainers.advantages.group_relative import Float64Array
from trainers.algorithms import AlgorithmRow

REWARD = AlgorithmRow(
    "advantage", "reward", "A = r, for baseline = minimum_variance",
    "Williams 1992", "source", "the rewards themselves",
)  # fmt: skip


def reward(rewards_G: npt.ArrayLike) -> Float64Array:
    """The rewards, float64 [G]; zeros if they are equal, so that the group is left out as one without a
    signal.

    Nothing is subtracted: `baseline = "minimum_variance"` does this for the whole batch, without the groups
    that are left out.
    """
    rewards: Float64Array = np.array(rewards_G, dtype=np.float64)
    return rewards if (rewards != rewards[0]).any() else np.zeros_like(rewards)
