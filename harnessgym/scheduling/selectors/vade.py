"""VADE: tasks from which a group would teach most, by Thompson sampling (arXiv 2511.18902).

Of each task's Beta posterior one success rate p is drawn; the tasks with the highest information gain
p(1-p)^2 come next, which is greatest at p = 1/3. The posterior's evidence decays at two scales. That is what
third-party notes and the abstract say; the paper's decay constants were not found, and those here are ours.
"""

from collections.abc import Sequence

import numpy as np
from pydantic import Field

from harnessgym.config import Config
from harnessgym.scheduling.selection import Pick, SelectionPool, Visit
from harnessgym.scheduling.selectors.difficulty import Float64Array, beliefs, best, open_groups


class VadeSettings(Config):
    """How fast evidence is forgotten."""

    visit_decay: float = Field(0.8, gt=0, le=1)
    """What is left of a task's evidence when the task is visited again."""
    version_decay: float = Field(0.98, gt=0, le=1)
    """What is left of all evidence when the policy is one version further."""


class Vade:
    """Chooses tasks; groups have their usual size."""

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
