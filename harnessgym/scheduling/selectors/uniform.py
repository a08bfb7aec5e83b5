"""Every task once per epoch, in an order that is shuffled anew for each epoch."""

import random
from collections.abc import Sequence

from harnessgym.config import Config
from harnessgym.scheduling.selection import Pick, SelectionPool, Visit


class UniformSettings(Config):
    """No settings."""


class Uniform:
    """Ignores the results of visits."""

    settings = UniformSettings

    # As every selector.
    def __init__(self, settings: UniformSettings, pool: SelectionPool) -> None:  # noqa: ARG002
        self._pool = pool

    def choose(self, number: int, wanted: int, visits: Sequence[Visit]) -> Sequence[Pick]:  # noqa: ARG002
        """See `Selector`."""
        return [
            Pick(in_turn(self._pool, place), self._pool.group_size)
            for place in range(number, number + wanted)
        ]


def in_turn(pool: SelectionPool, number: int) -> str:
    """The task after `number` others. Selectors that choose only sizes use this order."""
    epoch, place = divmod(number, len(pool.tasks))
    order = random.Random(f"{pool.seed} epoch {epoch}").sample(range(len(pool.tasks)), len(pool.tasks))
    return pool.tasks[order[place]]
