"""DART's dynamic rollout counts: fewer rollouts of tasks that mostly succeed (formula and constants from its
code).

Below a success rate of 0.6 a group has its usual size N; above, int(9 / rate - 7), but never fewer than two,
which is for N = 8: from N at the threshold to 2 at a rate of 1, linear in 1 / rate. Other N keep both ends.
Tasks come in turn.
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
    """From where on there are fewer."""

    threshold: float = Field(0.6, gt=0, lt=1)
    """Success rate up to which a group has its usual size."""
    least: int = Field(2, ge=2)
    """Rollouts of a group at a success rate of 1."""
    remembered: int = Field(3, gt=0)
    """Last visits to a task that its success rate is taken from; ours."""


class Dart:
    """Chooses sizes."""

    settings = DartSettings

    def __init__(self, settings: DartSettings, pool: SelectionPool) -> None:
        needs_groups("dart", pool)
        within("dart", "least", settings.least, most=pool.group_size)
        self._settings = settings
        self._pool = pool

    def choose(self, number: int, wanted: int, visits: Sequence[Visit]) -> Sequence[Pick]:
        """See `Selector`."""
        told = self._settings
        found = dict[str, list[Visit]]()
        for visit in visits:
            if visit.rewards:
                found.setdefault(visit.task, []).append(visit)
        picks = []
        for place in range(number, number + wanted):
            task = in_turn(self._pool, place)
            last = found.get(task, [])[-told.remembered :]
            rate = sum(map(success, last)) / sum(len(visit.rewards) for visit in last) if last else 0.0
            picks.append(Pick(task, count(rate, self._pool.group_size, told.threshold, told.least)))
        return picks


def count(rate: float, usual: int, threshold: float = 0.6, least: int = 2) -> int:
    """Rollouts of a group of a task with this success rate."""
    if rate < threshold:
        return usual
    slope = (usual - least) * threshold / (1 - threshold)
    return max(least, min(usual, int(slope / rate + least - slope + _ROUNDING)))
