"""Advantages relative to the other rollouts of the same group, without a value model; and plain rewards.

MC-GRPO takes the median instead of the mean, for small groups, in which an outlier could flip the others'
signs. `reward` is for updates that choose a baseline.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from pydantic import Field

from harnessgym.config import Config
from trainers.advantages.estimator import Advantages, Scored
from trainers.algorithms import AlgorithmRow

GRPO = AlgorithmRow(
    "advantage", "grpo", "A = (r - mean(r)) / (std(r) + 1e-4), std over the group with ddof 0",
    "arXiv 2402.03300", "source",
    "TRL 1.16 `GRPOTrainer`, its standard deviation (ddof 1) times sqrt((G - 1) / G)",
)  # fmt: skip
DR_GRPO = AlgorithmRow(
    "advantage",
    "dr_grpo",
    "A = r - mean(r)",
    "arXiv 2503.20783",
    "source",
    'TRL 1.16 `GRPOTrainer`, `scale_rewards = "none"`',
)
RLOO = AlgorithmRow(
    "advantage",
    "rloo",
    "A_i = r_i - mean of the others' rewards",
    "arXiv 2402.14740",
    "source",
    "TRL 1.16 `RLOOTrainer`",
)

Float64Array = npt.NDArray[np.float64]


def grpo(rewards_G: npt.ArrayLike, eps: float = 1e-4) -> Float64Array:
    """(r - mean) / (std + eps), with the population standard deviation (GRPO, arXiv 2402.03300).

    A group of equal rewards gets zeros. Raises `ValueError` if the rewards are not one-dimensional or empty.
    """
    centred_G = dr_grpo(rewards_G)
    return centred_G / float(centred_G.std() + eps)


def dr_grpo(rewards_G: npt.ArrayLike) -> Float64Array:
    """Reward minus mean, without the division by the deviation, which favours very easy and very hard tasks
    (Dr. GRPO, arXiv 2503.20783).

    Raises `ValueError` if the rewards are not one-dimensional or empty.
    """
    rewards: Float64Array = np.asarray(rewards_G, dtype=np.float64)
    if rewards.ndim != 1 or not rewards.size:
        raise ValueError(
            f"The rewards of a group are one number per rollout; got an array of shape {rewards.shape}."
        )
    if (rewards == rewards[0]).all():
        return np.zeros_like(rewards)
    return rewards - float(rewards.mean())


def rloo(rewards_G: npt.ArrayLike) -> Float64Array:
    """Reward minus the mean of the others' rewards (REINFORCE leave-one-out, arXiv 2402.14740); zero for a
    group of one.

    Raises `ValueError` if the rewards are not one-dimensional or empty.
    """
    centred_G = dr_grpo(rewards_G)
    size = len(centred_G)
    return centred_G * (size / (size - 1)) if size > 1 else centred_G


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
