"""XRPO: more rollouts where they most reduce the uncertainty of a task's mean reward (arXiv 2510.06672).

With n rewards of standard deviation s the half-width of the t-interval is h(n) = t s / sqrt(n), with t at 1 -
alpha/2 and n - 1 degrees of freedom. Every group gets a base. Each further rollout goes to the group with the
highest h(n) - h(n+1) + bonus * sqrt(ln(1+T) / n), where T counts all rollouts. The half-width is the paper's.
The bonus follows a third-party note of it; its weight was not found. Left out: examples in the prompts of
tasks that never succeed, which a black-box harness cannot take, and the novelty advantage, which is not
selection. Tasks come in turn.
"""

import math
from collections.abc import Sequence

import numpy as np
from pydantic import Field

from harnessgym.config import Config
from harnessgym.scheduling.selection import Pick, SelectionPool, Visit
from harnessgym.scheduling.selectors.difficulty import t_quantile
from harnessgym.scheduling.selectors.sizes import BudgetBlock, blocks, needs_groups, within
from harnessgym.scheduling.selectors.uniform import in_turn


class XrpoSettings(Config):
    """How rollouts are spread over groups."""

    base: int | None = Field(None, ge=2)
    """Rollouts that every group gets. Defaults to half the group size."""
    most: int | None = Field(None, ge=2)
    """Most rollouts in a group. Defaults to three times the group size."""
    alpha: float = Field(0.05, gt=0, lt=1)
    """One minus the confidence of the interval."""
    bonus: float = Field(0.01, ge=0)
    """Weight of exploration. Ours, not the paper's."""
    remembered: int = Field(2, gt=0)
    """Number of last visits to a task that its interval uses. The paper's interval is within one step."""


class Xrpo:
    """Chooses group sizes. Those of a batch's worth of groups add up to their number times the usual size."""

    settings = XrpoSettings

    def __init__(self, settings: XrpoSettings, pool: SelectionPool) -> None:
        needs_groups("xrpo", pool)
        self._settings = settings
        self._pool = pool
        self._base = max(2, pool.group_size // 2)
        self._most = 3 * pool.group_size
        if settings.base is not None:
            self._base = within("xrpo", "base", settings.base, most=pool.group_size)
        if settings.most is not None:
            self._most = within("xrpo", "most", settings.most, least=pool.group_size)

    def choose(self, number: int, wanted: int, visits: Sequence[Visit]) -> Sequence[Pick]:
        """See `Selector`."""
        rewards = dict[str, list[tuple[float, ...]]]()
        for visit in visits:
            if visit.rewards:
                rewards.setdefault(visit.task, []).append(visit.rewards)
        total = sum(len(group) for groups in rewards.values() for group in groups)
        return [
            pick
            for block in blocks(self._pool, number, wanted, visits)
            for pick in self._block(block, rewards, total)
        ]

    def _block(
        self, block: BudgetBlock, rewards: dict[str, list[tuple[float, ...]]], total: int
    ) -> list[Pick]:
        tasks = [in_turn(self._pool, place) for place in range(block.number, block.number + block.groups)]
        known = [
            [value for group in rewards.get(task, ())[-self._settings.remembered :] for value in group]
            for task in tasks
        ]
        spread = [float(np.std(values, ddof=1)) if len(values) > 1 else 0.5 for values in known]
        sizes = [self._base] * len(tasks)
        # Greedy suffices: each further rollout of a group is worth less than the one before it.
        for _ in range(max(0, block.rollouts - sum(sizes))):
            worth = [
                self._worth(s, max(2, len(values) + size), total) if size < self._most else -math.inf
                for s, values, size in zip(spread, known, sizes, strict=True)
            ]
            sizes[int(np.argmax(worth))] += 1
        return [Pick(task, size) for task, size in zip(tasks[: block.wanted], sizes, strict=False)]

    def _worth(self, s: float, n: int, total: int) -> float:
        alpha = self._settings.alpha
        return (
            half_width(s, n, alpha)
            - half_width(s, n + 1, alpha)
            + self._settings.bonus * math.sqrt(math.log1p(total) / n)
        )


def half_width(s: float, n: int, alpha: float) -> float:
    """h(n) of the t-interval with confidence 1 - alpha, for n >= 2 rewards of sample standard deviation s."""
    return t_quantile(1 - alpha / 2, n - 1) * s / math.sqrt(n)
