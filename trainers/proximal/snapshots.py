"""Scores each token in the trainer under the version that sampled it: the old logprobs that asynchronous
training lacks.

With these, pi_prox / mu is only the mismatch of engine and trainer, and pi / pi_prox only staleness ("Missing
Old Logits", arXiv 2605.12070, route (a)).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from harnessgym.errors import PolicyError, TrainerError
from harnessgym.tokens import FloatArray
from harnessgym.traces.trajectories import Row
from trainers.gradients import score_all
from trainers.policy import Policy
from trainers.policy_weights import load_weights, packed_weights
from trainers.proximal.proximal import copies, having, put
from trainers.update import UpdateMetrics
from trainers.update_settings import UpdateSettings
from trainers.weights.chain import read_version
from trainers.weights.manifest import version_path
from trainers.world import World


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
        self._held: dict[int, list[Tensor]] = {}

    def logprobs(self, rows: Sequence[Row]) -> list[FloatArray]:
        """Logprobs of each trained token under the version that sampled it, float32 [T]; 0 elsewhere."""
        out = [np.zeros(len(row.ids), dtype=np.float32) for row in rows]
        sampled = {int(version) for row in rows for version in np.unique(row.versions[row.mask != 0])}
        for version in sorted(sampled):
            own = [
                index for index, row in enumerate(rows) if ((row.versions == version) & (row.mask != 0)).any()
            ]
            with having(self.policy, self._of(version)):
                scores = score_all(
                    self.policy,
                    [rows[index] for index in own],
                    self.update.temperature,
                    self.update.micro_batch_tokens,
                    self.world,
                )
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

    def _of(self, version: int) -> list[Tensor]:
        """The part of a version's weights in this process, in main memory. Raises `TrainerError` if the
        version was removed.
        """
        if version not in self._held:
            own = copies(self.policy)
            if self.world.size > 1:
                from trainers.shards import scatter_weights

                leads = self.world.rank == 0
                scatter_weights(
                    self.policy, packed_weights(self.policy, self._read(version)) if leads else {}
                )
            else:
                load_weights(self.policy, self._read(version))
            self._held[version] = copies(self.policy, "cpu")
            put(self.policy, own)
        return self._held[version]

    def _read(self, version: int) -> dict[str, Tensor]:
        try:
            return read_version(version_path(self.versions, version))[1]
        except PolicyError as error:
            raise TrainerError(
                f"{error} proximal = 'snapshot' scores tokens under the version that sampled them: raise "
                "trainer.publish.keep, or choose another proximal policy."
            ) from error
