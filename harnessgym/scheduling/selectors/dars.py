"""DARS: more rollouts for hard tasks, none further for those that succeed half of the time (formulas from its
code).

With N rollouts of accuracy a, S = 2a(1-a) is the share of their variance; dN further ones bring it up to what
a = 1/2 has (equal treatment) or, weighted by hardness, beyond. DARS draws N rollouts and the dN right after
them, for the same step. Here a group is submitted once: the accuracy is that of the task's last visit, and
its next group has N + dN rollouts. Tasks come in turn.
"""

import math
from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from harnessgym.config import Config
from harnessgym.scheduling.selection import Pick, SelectionPool, Visit
from harnessgym.scheduling.selectors.difficulty import success
from harnessgym.scheduling.selectors.sizes import needs_groups, within
from harnessgym.scheduling.selectors.uniform import in_turn

_ROUNDING = 1e-9
_MOST = {"equal": 32, "hardness": 64}
"""N_max of the code."""


class DarsSettings(Config):
    """Which schedule."""

    schedule: Literal["equal", "hardness"] = "equal"
    """equal: every task is brought to the same share of variance (ET). hardness: hard ones to more (HW)."""
    most: int | None = Field(None, ge=2)
    """Rollouts of a group at most (N_max); 32 with equal, 64 with hardness if not given."""


class Dars:
    """Chooses sizes."""

    settings = DarsSettings

    def __init__(self, settings: DarsSettings, pool: SelectionPool) -> None:
        needs_groups("dars", pool)
        self._settings = settings
        self._pool = pool
        self._most = within("dars", "most", settings.most or _MOST[settings.schedule], least=pool.group_size)

    def choose(self, number: int, wanted: int, visits: Sequence[Visit]) -> Sequence[Pick]:
        """See `Selector`."""
        size = self._pool.group_size
        schedule = self._settings.schedule
        last = {visit.task: success(visit) / len(visit.rewards) for visit in visits if visit.rewards}
        picks = []
        for place in range(number, number + wanted):
            task = in_turn(self._pool, place)
            more = further(last[task], size, schedule, self._most) if task in last else 0
            picks.append(Pick(task, size + more))
        return picks


def further(accuracy: float, rollouts: int, schedule: Literal["equal", "hardness"], most: int) -> int:
    """How many rollouts (dN) behind `rollouts` (N) of an accuracy, no more than reach `most`."""
    if accuracy >= 0.5:
        return 0
    share = 2 * accuracy * (1 - accuracy) if accuracy > 0 else 0.5 / rollouts
    target = 0.5 * rollouts * (2 * (1 - accuracy) if schedule == "hardness" else 1)
    wanted = math.ceil((target - rollouts * share) / share - _ROUNDING)
    return max(0, min(wanted, most - rollouts))
