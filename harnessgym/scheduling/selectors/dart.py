"""DART's dynamic rollout counts: fewer rollouts for tasks that mostly succeed (constants from its code).

Below a success rate of 0.6 a group has its usual size N. Above, DART's code has int(9 / rate - 7) for N = 8,
at least two: from N at the threshold to 2 at a rate of 1, linear in 1 / rate. Other N keep both ends. Tasks
come in turn.
"""

from collections.abc import Sequence

from pydantic import Field

from harnessgym.config import Config
from harnessgym.scheduling.selection import Pick, SelectionPool, Visit
from harnessgym.scheduling.selectors.difficulty import success
from harnessgym.scheduling.selectors.sizes import needs_groups, within
from harnessgym.scheduling.selectors.uniform import in_turn

_ROUNDING = 1e-9


class DartSettings(Config):
    """From which success rate on groups shrink, and how far."""

    threshold: float = Field(0.6, gt=0, lt=1)
    """Success rate below which a group has its usual size."""
    least: int = Field(2, ge=2)
    """Rollouts in a group at a success rate of 1."""
    remembered: int = Field(3, gt=0)
    """Number of last visits over which a task's success rate is taken. Ours, not DART's."""


class Dart:
    """Chooses group sizes."""

    settings = DartSettings

    def __init__(self, settings: DartSettings, pool: SelectionPool) -> None:
        needs_groups("dart", pool)
        within("dart", "least", settings.least, most=pool.group_size)
        self._settings = settings
        self._pool = pool

    def choose(self, number: int, wanted: int, visits: Sequence[Visit]) -> Sequence[Pick]:
        """See `Selector`."""
        settings = self._settings
        visits_by_task = dict[str, list[Visit]]()
        for visit in visits:
            if visit.rewards:
                visits_by_task.setdefault(visit.task, []).append(visit)
        picks = []
        for place in range(number, number + wanted):
            task = in_turn(self._pool, place)
            last = visits_by_task.get(task, [])[-settings.remembered :]
            rate = sum(map(success, last)) / sum(len(visit.rewards) for visit in last) if last else 0.0
            picks.append(Pick(task, count(rate, self._pool.group_size, settings.threshold, settings.least)))
        return picks


def count(rate: float, usual: int, threshold: float = 0.6, least: int = 2) -> int:
    """Rollouts in a group of a task with this success rate."""
    if rate < threshold:
        return usual
    slope = (usual - least) * threshold / (1 - threshold)
    return max(least, min(usual, int(slope / rate + least - slope + _ROUNDING)))
