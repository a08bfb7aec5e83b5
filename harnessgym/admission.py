"""When new work may be submitted, so that nothing the trainer consumes is staler than allowed.

Pure decisions: the node calls them with counts from the store, the simulator with its own. The bound holds if batches are
consumed in order of submission, as the trainer does.
"""

from dataclasses import dataclass


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
    """Groups submitted and not complete."""
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
