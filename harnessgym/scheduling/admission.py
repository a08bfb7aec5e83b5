"""Decides when new groups may be submitted, so that the trainer consumes nothing staler than allowed.

Pure functions: the node calls them with counts from the store, the simulator with its own. The bound holds if
batches are consumed in order of submission, as the trainer does.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from harnessgym.store.workers import WorkerState

SERVING: tuple[WorkerState, ...] = ("ready", "draining", "updating")
"""Worker states in which it may still sample under its recorded version."""


_ROUNDING = 1e-9
"""Rounding error allowed when a fraction of a batch is turned into whole groups."""


def serving_step(workers: Iterable[tuple[WorkerState, int]], depth: Callable[[int], int]) -> int | None:
    """Number of batches that led to the oldest version still served; None while no worker serves.

    `workers` holds states and versions. `depth` is `VersionChain.depth`, which counts an orphaned version as
    the one it forked from.
    """
    return min((depth(version) for state, version in workers if state in SERVING), default=None)


def groups_holding(rollouts: int, group_size: int) -> int:
    """How many groups this many rollouts fill, rounded up. A nearly finished group counts in part."""
    return -(-rollouts // group_size)


@dataclass(frozen=True, slots=True)
class Admission:
    """The counts of groups that decide admission."""

    max_staleness: int
    """η: 0 is synchronous training."""
    groups_per_batch: int
    serving_step: int
    """See `serving_step`."""
    submitted: int
    """Groups submitted so far, without those given up."""
    running: int
    """Groups that the unfinished rollouts fill; see `groups_holding`."""
    max_running: int
    total: int
    """Groups in all batches of the run."""
    over_launch: float | None = None
    """Batches' worth of groups that may be outstanding at one time, whatever η; η + 1 if not given."""
    replayed: int = 0
    """Places in each batch that replayed groups may take."""
    consumed: int = 0
    """Submitted groups that were trained. Needed only with replays, where they are fewer than whole batches;
    else 0."""
    trained_step: int = 0
    """Batches they were trained in; 0 if `consumed` is 0."""

    def capacity(self) -> int:
        """How many more groups may be submitted now (AReaL, arXiv 2505.24298, with groups for rollouts).

        A group submitted now starts under the served version and must be consumed, in order of submission, at
        most `max_staleness` batches later. So the outstanding groups must fit into those batches, less the
        ones trained since. Over-launching (APRIL, arXiv 2509.18521) sets the number of outstanding batches
        itself and leaves the bound to consumption.
        """
        ahead = self.max_staleness + 1 if self.over_launch is None else self.over_launch
        window = self._fresh(ahead + self.serving_step - self.trained_step)
        left = self._fresh(self.total / self.groups_per_batch - self.trained_step)
        stands = self.submitted - self.consumed
        return max(0, min(window - stands, left - stands, self.max_running - self.running))

    def _fresh(self, batches: float) -> int:
        """New groups that this many batches take at least. The first batch may find nothing to replay."""
        most = self.groups_per_batch
        least = self.groups_per_batch - self.replayed
        return int(max(batches * least, min(batches, 1) * most) + _ROUNDING)
