"""Advantages relative to the other rollouts of the same group: no value model."""

import numpy as np
import numpy.typing as npt

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
