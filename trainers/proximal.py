"""Proximal policies that need forward passes with other weights, before the update's own.

In each process they act on its own part of a sharded policy. `MovingAverage` is an average of past versions
(PPO-EWMA, revised). `Snapshots` scores each token in the trainer under the version that sampled it: the old
logprobs that asynchronous training lacks. With these, pi_prox / mu is only the mismatch of engine and
trainer, and pi / pi_prox only staleness ("Missing Old Logits", arXiv 2605.12070, route (a)).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from harnessgym.errors import PolicyError, TrainerError
from harnessgym.tokens import FloatArray
from harnessgym.traces.trajectories import Row
from trainers.algorithms import AlgorithmRow
from trainers.held_weights import HeldWeights
from trainers.policy import Policy
from trainers.scoring import Scorer
from trainers.update import UpdateMetrics
from trainers.update_settings import Ewma, UpdateSettings
from trainers.weights.chain import read_version
from trainers.weights.manifest import version_path
from trainers.world import World


class Proximal(Protocol):
    """A proximal policy. Every process has one, and all processes call its methods together."""

    def logprobs(self, rows: Sequence[Row]) -> list[FloatArray]:
        """Logprobs of the trained tokens of each row, float32 [T]; the values of other tokens are not
        used.
        """
        ...

    def stepped(self, metrics: UpdateMetrics) -> None:
        """Update the proximal policy after an optimizer step. Called after each one."""
        ...

    def state(self) -> dict[str, Any] | None:
        """The state for a checkpoint, in the leader, as copies; None if it has none."""
        ...

    def load(self, state: dict[str, Any] | None) -> None:
        """Load a state; without one, start from the policy's weights."""
        ...


EWMA = AlgorithmRow(
    "correction", "proximal = ewma",
    "theta_prox = sum beta^(t-k) theta_k / sum beta^(t-k), beta = W / (W + 2); from theta again where masks "
    "leave < 0.9",
    "PPO-EWMA, revised: arXiv 2605.12070 (when in a step it begins again: ours)",
    "third party", "the two sums, in float64",
)  # fmt: skip


def ewma_update(total: float, beta: float) -> tuple[float, float]:
    """The new sum of the weights beta^(t-k), and the newest value's share in the average.

    `total` is the sum before the newest value. The average moves towards the newest value by that share.
    """
    total = beta * total + 1.0
    return total, 1.0 / total


class MovingAverage:
    """theta_prox = sum beta^(t-k) theta_k / sum beta^(t-k) over all versions k <= t, including the first.

    beta = W / (W + 2) for tokens up to W versions old. If corrections keep a smaller share of a batch's
    tokens than `reset_below`, the average starts again from the weights after this step. It needs one more
    copy of the weights. (arXiv 2605.12070; the formula and the reset are taken from a third party's note, the
    moment of the reset within the step is our choice.)
    """

    def __init__(self, policy: Policy, update: UpdateSettings, settings: Ewma, world: World) -> None:
        self.policy = policy
        self.update = update
        self.settings = settings
        self.world = world
        self._mean = HeldWeights(policy, world)
        self._total = 1.0

    def logprobs(self, rows: Sequence[Row]) -> list[FloatArray]:
        """Logprobs of all tokens of each row under the average, float32 [T]."""
        with self._mean.in_place():
            return Scorer(self.policy, self.update, self.world).logprobs(rows)

    def stepped(self, metrics: UpdateMetrics) -> None:
        """Add the weights after a step to the average."""
        if 1.0 - metrics.masked < self.settings.reset_below:
            self._begin()
            return
        self._total, share = ewma_update(self._total, self.settings.beta)
        self._mean.move_towards_policy(share)

    def state(self) -> dict[str, Any]:
        """The average, and the sum of its weights."""
        return {"weights": self._mean.state(), "total": self._total}

    def load(self, state: dict[str, Any] | None) -> None:
        """Load a state; without one, start from the policy's weights."""
        total = self.world.broadcast(None if state is None else state["total"])
        if total is None:
            self._begin()
            return
        self._mean.load((state or {}).get("weights", {}))
        self._total = total

    def _begin(self) -> None:
        self._mean.take_policy()
        self._total = 1.0


class Snapshots:
    """Copies of the newest published versions in main memory, by number: at most `kept`.

    A version is read from disk when a batch first has tokens of it, so it has the weights that engines
    sampled with, rounded as published. There is nothing to checkpoint: a resumed trainer reads the versions
    again.
    """

    def __init__(
        self, policy: Policy, update: UpdateSettings, versions: Path, kept: int, world: World
    ) -> None:
        self.policy = policy
        self.update = update
        self.versions = versions
        self.kept = kept
        self.world = world
        self._held: dict[int, HeldWeights] = {}

    def logprobs(self, rows: Sequence[Row]) -> list[FloatArray]:
        """Logprobs of each trained token under the version that sampled it, float32 [T]; 0 elsewhere."""
        out = [np.zeros(len(row.ids), dtype=np.float32) for row in rows]
        sampled = {int(version) for row in rows for version in np.unique(row.versions[row.mask != 0])}
        for version in sorted(sampled):
            own = [
                index for index, row in enumerate(rows) if ((row.versions == version) & (row.mask != 0)).any()
            ]
            with self._of(version).in_place():
                scorer = Scorer(self.policy, self.update, self.world)
                scores = scorer.logprobs([rows[index] for index in own])
            for index, logprobs in zip(own, scores, strict=True):
                np.copyto(out[index], logprobs, where=rows[index].versions == version)
        return out

    def stepped(self, metrics: UpdateMetrics) -> None:  # noqa: ARG002
        """Drop the versions that are too old for the next batch."""
        for version in sorted(self._held)[: -self.kept]:
            del self._held[version]

    @property
    def held(self) -> list[int]:
        """Versions in memory."""
        return sorted(self._held)

    def state(self) -> None:
        """None: versions are read again from disk."""

    def load(self, state: dict[str, Any] | None) -> None:
        """Do nothing: there is no state."""

    def _of(self, version: int) -> HeldWeights:
        """A version's weights. Raises `TrainerError` if the version was removed."""
        if version not in self._held:
            weights = self._read(version) if self.world.rank == 0 else {}
            self._held[version] = HeldWeights(self.policy, self.world, weights, device="cpu")
        return self._held[version]

    def _read(self, version: int) -> dict[str, Tensor]:
        try:
            return read_version(version_path(self.versions, version))[1]
        except PolicyError as error:
            raise TrainerError(
                f"{error} proximal = 'snapshot' scores tokens under the version that sampled them: raise "
                "trainer.publish.keep, or choose another proximal policy."
            ) from error
