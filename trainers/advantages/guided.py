"""What a reference policy takes from rewards, and what a teacher gives to single tokens, as advantages."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from harnessgym.tokens import FloatArray
from harnessgym.traces.trajectories import Row
from trainers.advantages.estimator import Advantages, Estimator, Scored, Value
from trainers.algorithms import AlgorithmRow

if TYPE_CHECKING:
    from trainers.trained_policy import TrainedPolicy

KL_IN_REWARD = AlgorithmRow(
    "advantage", "kl.use = reward",
    "r - c sum_t (log mu - log pi_ref) over the rollout's sampled tokens; with ppo each token's own term as "
    "its reward",
    "arXiv 2203.02155; TRL", "source", "TRL 1.16 `RLOOTrainer`, `beta`, its lines transcribed",
)  # fmt: skip
DISTILLATION = AlgorithmRow(
    "advantage", "distillation.tokens = sampled",
    "A_t + c (log pi_T - log mu) of each sampled token; A_t = 0 with rewards = false",
    "On-Policy Distillation, Thinking Machines 2025; TRL 1.16 `iw_opd`", "source",
    "TRL's `iw_opd` with gamma = 0, its lines transcribed",
)  # fmt: skip


def divergences(rows: Sequence[Row], other: Sequence[FloatArray]) -> list[FloatArray]:
    """log mu - log pi_other of each trained token, float32 [T] per row, 0 elsewhere: in the mean over what mu
    samples it is KL(mu, pi_other).
    """
    return [
        np.where(row.mask != 0, row.logprobs - logprobs, np.float32(0)).astype(np.float32)
        for row, logprobs in zip(rows, other, strict=True)
    ]


def penalised(reward: float, divergence: Sequence[FloatArray], coefficient: float) -> float:
    """A rollout's reward minus c times the divergences of its tokens, float [T] per row."""
    return reward - coefficient * float(sum(each.sum(dtype=np.float64) for each in divergence))


def with_teacher(value: Value, divergence: FloatArray, coefficient: float) -> FloatArray:
    """A row's advantage minus c times the divergence from the teacher of each of its tokens, float32 [T]."""
    advantage: FloatArray = (np.asarray(value) - np.float32(coefficient) * divergence).astype(np.float32)
    return advantage


def mean_divergence(rows: Sequence[Row], divergence: Sequence[FloatArray]) -> float:
    """The mean over trained tokens, nats per token; 0 without any."""
    tokens = sum(int(np.count_nonzero(row.mask)) for row in rows)
    return float(sum(each.sum(dtype=np.float64) for each in divergence)) / tokens if tokens else 0.0


class GuidedEstimator:
    """Another estimator's advantages, with a KL penalty in its rewards and a teacher's divergence in its
    tokens.
    """

    def __init__(self, estimator: Estimator, trained_policy: "TrainedPolicy") -> None:
        """`trained_policy` has the settings `kl` and `distillation`, and scores with what they name."""
        self.estimator = estimator
        self.trained_policy = trained_policy
        self._measured: dict[str, list[tuple[float, int]]] = {}

    def __call__(self, group: Sequence[Scored]) -> Advantages:
        """See `Estimator`."""
        kl, distillation = self.trained_policy.settings.kl, self.trained_policy.settings.distillation
        rows = [row for item in group for row in item.rows]
        if kl is not None and kl.use == "reward" and self._rewards_count(group):
            own = self._divergences("reference_kl", rows, self.trained_policy.reference_logprobs(rows))
            penalties = self._by_rollout(group, own)
            group = [
                replace(item, reward=penalised(item.reward, each, kl.coefficient))
                for item, each in zip(group, penalties, strict=True)
            ]
        if distillation is not None and distillation.in_loss and not distillation.rewards:
            return [[0.0] * len(item.rows) for item in group]
        if distillation is None or distillation.in_loss:
            return self.estimator(group)
        own = self._divergences("teacher_kl", rows, self.trained_policy.teacher_logprobs(rows))
        by_rollout = self._by_rollout(group, own)
        values: Advantages = (
            self.estimator(group) if distillation.rewards else [[0.0] * len(item.rows) for item in group]
        )
        return [
            None
            if given is None
            else [
                with_teacher(value, each, distillation.coefficient)
                for value, each in zip(given, divergence, strict=True)
            ]
            for given, divergence in zip(values, by_rollout, strict=True)
        ]

    def _rewards_count(self, group: Sequence[Scored]) -> bool:
        """Whether the rewards alone give some trained token an advantage, or a teacher trains every group.

        Otherwise a penalty would be all that the group's rewards differ in, and be scaled up to their size.
        """
        if self.trained_policy.settings.distillation is not None:
            return True
        return any(
            np.any((np.asarray(value) != 0) & (row.mask != 0))
            for item, values in zip(group, self.estimator(group), strict=True)
            if values is not None
            for row, value in zip(item.rows, values, strict=True)
        )

    def metrics(self) -> dict[str, float]:
        """Mean divergences of the groups since the last call, nats per token."""
        measured, self._measured = self._measured, {}
        return {
            name: sum(total for total, _ in parts) / max(1, sum(tokens for _, tokens in parts))
            for name, parts in measured.items()
        }

    def _divergences(self, name: str, rows: Sequence[Row], other: Sequence[FloatArray]) -> list[FloatArray]:
        own = divergences(rows, other)
        tokens = sum(int(np.count_nonzero(row.mask)) for row in rows)
        self._measured.setdefault(name, []).append((mean_divergence(rows, own) * tokens, tokens))
        return own

    @staticmethod
    def _by_rollout(group: Sequence[Scored], per_row: Sequence[FloatArray]) -> list[list[FloatArray]]:
        left = iter(per_row)
        return [[next(left) for _ in item.rows] for item in group]
