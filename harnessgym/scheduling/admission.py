"""When new work may be submitted, so that nothing the trainer consumes is staler than allowed.

Pure decisions: the node calls them with counts from the store, the simulator with its own. The bound holds if
batches are consumed in order of submission, as the trainer does.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from harnessgym.store.workers import WorkerState

SERVING: tuple[WorkerState, ...] = ("ready", "draining", "updating")
"""States of a worker that may still sample under the version it is recorded with."""


_ROUNDING = 1e-9
"""What a product of a fraction of a batch may lack of a whole group."""


def serving_step(workers: Iterable[tuple[WorkerState, int]], depth: Callable[[int], int]) -> int | None:
    """Batches behind the version that the slowest serving worker has; None while no worker serves.

    `workers` are states and versions; `depth` is `VersionChain.depth`, by which a version that was orphaned
    counts as the one it forked from.
    """
    return min((depth(version) for state, version in workers if state in SERVING), default=None)


def groups_holding(rollouts: int, group_size: int) -> int:
    """How many groups so many rollouts fill. An open group of which one rollout is left counts for that
    one alone.
    """
    return -(-rollouts // group_size)


@dataclass(frozen=True, slots=True)
class Admission:
    """Counts of groups on which admission rests."""

    max_staleness: int
    """η: 0 is synchronous training."""
    groups_per_batch: int
    serving_step: int
    """Batches consumed behind the version that the slowest serving worker has."""
    submitted: int
    """Groups submitted so far, less those given up."""
    running: int
    """Groups that the rollouts fill which are submitted and not ended."""
    max_running: int
    total: int
    """Groups that the whole run's batches have room for."""
    over_launch: float | None = None
    """Batches' worth of groups that stand at one time, whatever η; η + 1 if not given."""
    replayed: int = 0
    """Places of each batch that may go to groups which were trained before."""
    consumed: int = 0
    """Of the submitted groups, those that were trained, where replays make them fewer than whole batches;
    else 0 will do."""
    trained_step: int = 0
    """Batches they were trained in; 0 with 0."""

    def capacity(self) -> int:
        """How many more groups may be submitted now (AReaL, arXiv 2505.24298, with groups for rollouts).

        A group submitted now is consumed, in order of submission, no later than `max_staleness` batches from
        the version it starts under: between the served version and that batch there are so many batches, less
        those trained since, and what stands must fit into them. Over-launching (APRIL, arXiv 2509.18521) lets
        so much more or less stand, and leaves the bound to consumption.
        """
        ahead = self.max_staleness + 1 if self.over_launch is None else self.over_launch
        window = self._fresh(ahead + self.serving_step - self.trained_step)
        left = self._fresh(self.total / self.groups_per_batch - self.trained_step)
        stands = self.submitted - self.consumed
        return max(0, min(window - stands, left - stands, self.max_running - self.running))

    def _fresh(self, batches: float) -> int:
        """New groups that so many batches take at least: the first may find nothing to replay."""
        most = self.groups_per_batch
        least = self.groups_per_batch - self.replayed
        return int(max(batches * least, min(batches, 1) * most) + _ROUNDING)
