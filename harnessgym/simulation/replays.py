"""Groups that are trained again: decided as the trainer does it, on the simulated ledger."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from harnessgym.scheduling.consumption import Replayable, places_for_replays, replay
from harnessgym.simulation.node import Group
from harnessgym.simulation.planner import SimulatedPlanner
from harnessgym.simulation.settings import SimulationConfig


class Replays:
    """Chooses what a batch trains again."""

    def __init__(self, config: SimulationConfig, planner: SimulatedPlanner) -> None:
        self._options = config.trainer
        self._planner = planner
        self.into: dict[int, list[Group]] = {}
        """Groups by the surviving version that they were trained into, not for the first time."""

    def choose(
        self, version: int, ledger: Mapping[int, Sequence[Group]], staleness: Callable[[Group], int]
    ) -> list[Group]:
        """For the step from `version`; `ledger` has what was trained for the first time, by version."""
        options = self._options
        if not options.reuse:
            return []
        recent = sorted(ledger)[-options.max_staleness :]
        found = {group.id: group for into in recent for group in (*ledger[into], *self.into[into])}
        times = Counter(group.id for into in recent for group in (*ledger[into], *self.into[into]))
        trained = [
            Replayable(group.id, group.ordinal, times[group.id], staleness(group)) for group in found.values()
        ]
        return [
            found[name]
            for name in replay(trained, options.reuse, options.max_staleness)[
                : self._places(version, len(ledger))
            ]
        ]

    def _places(self, version: int, step: int) -> int:
        """So many that what stands does not get too stale for them."""
        options = self._options
        ordered = self._options.consumption == "wait"
        standing = [group for group in self._planner.outstanding.values() if ordered or group.complete]
        ages = [self._planner.chain.between(version, group.submitted_version) for group in standing]
        if not ordered:
            ages = [age for age in ages if age <= options.max_staleness]
        left = self._planner.batches - step
        return places_for_replays(
            ages, options.groups_per_step, options.replayed, options.max_staleness, left
        )
