"""VADE: the tasks with the highest information gain, by Thompson sampling (arXiv 2511.18902).

A success rate p is drawn from each task's Beta posterior. The tasks with the highest gain p(1-p)^2 come next;
it is greatest at p = 1/3. The posterior's evidence decays at two scales. This follows third-party notes and
the abstract. The paper's decay constants were not found; those here are ours.
"""

from collections.abc import Sequence

import numpy as np
from pydantic import Field

from harnessgym.config import Config
from harnessgym.scheduling.selection import Pick, SelectionPool, Visit
from harnessgym.scheduling.selectors.difficulty import Float64Array, beliefs, best, open_groups


class VadeSettings(Config):
    """How fast evidence decays."""

    visit_decay: float = Field(0.8, gt=0, le=1)
    """Share of a task's evidence that is left when the task is visited again."""
    version_decay: float = Field(0.98, gt=0, le=1)
    """Share of all evidence that is left after each new policy version."""


class Vade:
    """Chooses tasks. Groups have their usual size."""

    settings = VadeSettings

    def __init__(self, settings: VadeSettings, pool: SelectionPool) -> None:
        self._settings = settings
        self._pool = pool

    def choose(self, number: int, wanted: int, visits: Sequence[Visit]) -> Sequence[Pick]:
        """See `Selector`."""
        pool = self._pool
        decay = self._settings
        known = beliefs(pool, visits, visit_decay=decay.visit_decay, version_decay=decay.version_decay)
        drawn_N = np.random.default_rng([pool.seed, number]).beta(known.alpha_N, known.beta_N)
        chosen = best(information_gain(drawn_N), open_groups(pool, visits), wanted)
        return [Pick(pool.tasks[place], pool.group_size) for place in chosen]


def information_gain(p_N: Float64Array) -> Float64Array:
    """p(1-p)^2, float64 [N]."""
    return p_N * (1.0 - p_N) ** 2
