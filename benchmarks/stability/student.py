"""A policy that learns from rollouts which it sampled a fixed number of updates ago."""

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from benchmarks.stability.methods import Method
from harnessgym.registry import load
from harnessgym.traces.trajectories import Row
from trainers.held_weights import HeldWeights
from trainers.optimizer import make_optimizer
from trainers.policies.native import NativePolicy
from trainers.proximal import MovingAverage
from trainers.update import UpdateMetrics, policy_update
from trainers.update_settings import Ewma
from trainers.world import ALONE


@dataclass(frozen=True, slots=True)
class Group:
    """Rollouts of one task, a row each, and their rewards."""

    rows: Sequence[Row]
    rewards: Sequence[float]


class Student:
    """The trainer's update on what the policy sampled `lag` updates ago, or with its first weights, as long
    as it had fewer.

    Groups whose advantages are all 0 are left out. A batch of only such groups changes nothing and counts as
    an update: a trainer makes a version of it too.
    """

    def __init__(self, policy: NativePolicy, method: Method, lr: float, lag: int) -> None:
        self.policy, self.lag, self.version = policy, lag, 0
        self.settings = method.settings(lr, lag)
        self._advantages = load("advantage", method.advantage)
        self._optimizer = make_optimizer(policy, self.settings)
        named = self.settings.proximal
        self._average = (
            MovingAverage(policy, self.settings, named, ALONE) if isinstance(named, Ewma) else None
        )
        self._past = deque([HeldWeights(policy, ALONE)], lag + 1)

    @property
    def sampling_version(self) -> int:
        """The version that samples what the next update learns from."""
        return max(self.version - self.lag, 0)

    @contextmanager
    def sampling(self) -> Iterator[NativePolicy]:
        """The policy with the weights that it had `lag` updates ago."""
        with self._past[0].in_place():
            yield self.policy

    def learn(self, groups: Sequence[Group]) -> UpdateMetrics | None:
        """Update on a batch of groups; None without a signal. Raises `TrainerError` if the gradient is not
        finite.
        """
        rows: list[Row] = []
        advantages: list[float] = []
        for group in groups:
            found = self._advantages(np.array(group.rewards))
            if found.any():
                rows += group.rows
                advantages += found.tolist()
        metrics = self._update(rows, advantages) if rows else None
        self.version += 1
        self._past.append(HeldWeights(self.policy, ALONE))
        return metrics

    def _update(self, rows: Sequence[Row], advantages: Sequence[float]) -> UpdateMetrics:
        proximal = None if self._average is None else self._average.logprobs(rows)
        ages = [np.where(row.mask != 0, self.version - row.versions, 0).astype(np.int32) for row in rows]
        metrics = policy_update(
            self.policy, self._optimizer, rows, advantages, self.settings, proximal, ages=ages
        )
        if self._average is not None:
            self._average.stepped(metrics)
        return metrics
