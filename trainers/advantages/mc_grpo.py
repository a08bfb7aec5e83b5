"""MC-GRPO: the median instead of the mean, for small groups, in which an outlier could flip the others'
signs.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from pydantic import Field

from harnessgym.config import Config
from trainers.advantages.estimator import Advantages, Scored
from trainers.advantages.group_relative import Float64Array, dr_grpo
from trainers.algorithms import AlgorithmRow

MC_GRPO = AlgorithmRow(
    "advantage", "mc_grpo",
    "A = (r - median(r)) / (median(|r - median(r)|) + 1e-3) x G / (number of A != 0); one rollout at the "
    "median is dropped",
    "arXiv 2601.22582, github.com/lotusroot-kim/MC-GRPO", "source", "transcription of the authors' code in "
                                                                    "torch, float64",
)  # fmt: skip


class McGrpoSettings(Config):
    """The scale of the advantages."""

    eps: float = Field(1e-3, gt=0)
    """Added to the deviation. If most rewards of a group are equal the deviation is 0, and advantages are as
    large as 1 / eps."""


class McGrpo:
    """MC-GRPO (arXiv 2601.22582). Use an odd group size, one more than the number of rollouts to train."""

    Settings = McGrpoSettings

    def __init__(self, settings: McGrpoSettings) -> None:
        self.settings = settings

    def __call__(self, group: Sequence[Scored]) -> Advantages:
        """The same advantage for all rows of a rollout; the pivot is dropped."""
        values = mc_grpo([item.reward for item in group], self.settings.eps)
        pairs = zip(group, values, strict=True)
        return [None if np.isnan(value) else [float(value)] * len(item.rows) for item, value in pairs]


def mc_grpo(rewards_G: npt.ArrayLike, eps: float = 1e-3) -> Float64Array:
    """Distance from the median in median absolute deviations, divided by the share that is not zero (arXiv
    2601.22582).

    The first rollout at the median, the pivot, gets NaN: it is dropped, so denominators do not count it, as
    in the authors' code (others at the median are masked and count). For an even number the lower median is
    used, as in torch. Equal rewards give zeros, and no rollout is dropped.

    Raises `ValueError` if the rewards are not one-dimensional or empty.
    """
    if not dr_grpo(rewards_G).any():
        return np.zeros(len(np.asarray(rewards_G)))
    rewards = np.asarray(rewards_G, dtype=np.float64)
    centred_G = rewards - _lower_median(rewards)
    advantages_G = centred_G / (_lower_median(np.abs(centred_G)) + eps)
    advantages_G *= len(rewards) / np.count_nonzero(centred_G)
    advantages_G[np.flatnonzero(centred_G == 0)[0]] = np.nan
    return advantages_G


def _lower_median(values_G: Float64Array) -> float:
    return float(np.sort(values_G)[(len(values_G) - 1) // 2])
