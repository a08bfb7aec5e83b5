"""When new work may be submitted, so that nothing the trainer consumes is staler than allowed.

Pure decisions: the node calls them with counts from the store, the simulator with its own. The bound holds if batches are
consumed in order of submission, as the trainer does.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from harnessgym.store.workers import WorkerState

SERVING: tuple[WorkerState, ...] = ("ready", "draining", "updating")
"""States of a worker that may still sample under the version it is recorded with."""


def serving_step(workers: Iterable[tuple[WorkerState, int]], depth: Callable[[int], int]) -> int | None:
    """Batches behind the version that the slowest serving worker has; None while no worker serves.

    `workers` are states and versions; `depth` is `VersionChain.depth`, by which a version that was orphaned counts as the one
    it forked from.
    """
    return min((depth(version) for state, version in workers if state in SERVING), default=None)


def groups_holding(rollouts: int, group_size: int) -> int:
    """How many groups so many rollouts fill. An open group of which one rollout is left counts for that one alone."""
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
    """Groups the whole run will consume."""

    def capacity(self) -> int:
        """How many more groups may be submitted now (AReaL, arXiv 2505.24298, with groups for rollouts).

        A group submitted now is consumed, in order of submission, no later than `max_staleness` batches from the version
        it starts under, hence (max_staleness + serving_step + 1) * groups_per_batch may have been submitted in all.
        """
        by_staleness = (self.max_staleness + self.serving_step + 1) * self.groups_per_batch - self.submitted
        return max(0, min(by_staleness, self.max_running - self.running, self.total - self.submitted))
