"""DARS: more rollouts for hard tasks, none for tasks that succeed half the time (formulas from its code).

N rollouts of accuracy a have a variance share S = 2a(1-a). dN further ones raise it to that of a = 1/2 (equal
treatment) or, weighted by hardness, above it. DARS draws the N rollouts and then the dN for the same step.
Here a group is submitted once: the accuracy is that of the task's last visit, and its next group has N + dN
rollouts. Tasks come in turn.
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
"""N_max in DARS's code."""


class DarsSettings(Config):
    """The schedule and the largest group."""

    schedule: Literal["equal", "hardness"] = "equal"
    """equal: every task gets the same share of variance (ET). hardness: hard tasks get more (HW)."""
    most: int | None = Field(None, ge=2)
    """Most rollouts in a group (N_max). Defaults to 32 with equal, 64 with hardness."""


class Dars:
    """Chooses group sizes."""

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
    """Further rollouts (dN) after `rollouts` (N) of an accuracy. The sum is at most `most`."""
    if accuracy >= 0.5:
        return 0
    # Without a success the share would be 0 and dN infinite: use a floor instead.
    share = 2 * accuracy * (1 - accuracy) if accuracy > 0 else 0.5 / rollouts
    target = 0.5 * rollouts * (2 * (1 - accuracy) if schedule == "hardness" else 1)
    wanted = math.ceil((target - rollouts * share) / share - _ROUNDING)
    return max(0, min(wanted, most - rollouts))
