"""GDPO: several rewards, each normalised within its group before they are added, so that none dominates."""

from collections.abc import Sequence

import numpy as np
from pydantic import Field

from harnessgym.config import Config
from trainers.advantages.estimator import Advantages, Scored
from trainers.advantages.steps import standardised
from trainers.algorithms import AlgorithmRow

GDPO = AlgorithmRow(
    "advantage", "gdpo",
    "A = sum_k w_k (r_k - mean(r_k)) / (std(r_k) + 1e-4) in the group; then (A - mean(A)) / (std(A) + 1e-4) "
    "over the batch; std with ddof 0",
    "arXiv 2601.05242, github.com/NVlabs/GDPO", "source",
    "TRL 1.16 `GRPOTrainer`, `normalize_then_sum`, its standard deviations (ddof 1) made ours",
)  # fmt: skip
_EPS = 1e-4


class GdpoSettings(Config):
    """Which rewards, and how much each counts."""

    weights: dict[str, float] = Field(default_factory=lambda: {"reward": 1.0}, min_length=1)
    """Weight by channel of the rollout's rewards. Every rollout must have a reward under each channel."""


class Gdpo:
    """GDPO (arXiv 2601.05242). A group has a signal if its rewards differ in any channel, even if their sums
    are equal.
    """

    Settings = GdpoSettings

    def __init__(self, settings: GdpoSettings) -> None:
        self.settings = settings

    def __call__(self, group: Sequence[Scored]) -> Advantages:
        """Weighted sums of standard scores, not yet normalised over the batch."""
        total_G = np.zeros(len(group))
        for channel, weight in self.settings.weights.items():
            rewards_G = np.array(
                [item.reward_under(channel, "trainer.advantage_settings.weights") for item in group]
            )
            total_G += weight * standardised(rewards_G, _EPS)
        return [[float(value)] * len(item.rows) for item, value in zip(group, total_G, strict=True)]

    def over_batch(self, groups: Sequence[Advantages]) -> list[Advantages]:
        """Standard scores over the batch's rollouts. A group of zeros keeps its zeros and counts in mean and
        deviation.
        """
        scores_N = np.array([rows[0] for group in groups for rows in group if rows], dtype=np.float64)
        mean, std = (float(scores_N.mean()), float(scores_N.std())) if len(scores_N) else (0.0, 0.0)
        return [
            [[(value - mean) / (std + _EPS) for value in rows or ()] for rows in group]
            if _has_signal(group)
            else group
            for group in groups
        ]


def _has_signal(group: Advantages) -> bool:
    return any(value for rows in group for value in rows or ())
