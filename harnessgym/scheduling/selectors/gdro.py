"""GDRO: two adversaries over difficulty bins, for tasks and for group sizes (arXiv 2601.19280 and its code).

A task's bin is the running mean of pass@k over its visits, in tenths, with hysteresis. Prompts: a bin's score
is an exponential mean of its loss. A non-empty bin is drawn with the weight (1-gamma) softmax(eta * score) +
gamma / bins, and a task uniformly from it. Rollouts: for each bin EXP3 keeps a score of every group size n.
When a group of that size ends, J + price * (n - mean) is subtracted. Sizes follow from the weights of their
scores, so that a budget is spent exactly.

Differences from the code. It weights the losses of samples with the prompts' weights (capped at 10, which
they never reach); here prompts are drawn with them. Its loss is the policy gradient's, which a planner cannot
see; here the score is the share of failures, and J is the variance p(1-p)/n of the paper's argument. It takes
the likeliest sizes; here Gumbel noise makes that a draw.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
from pydantic import Field

from harnessgym.config import Config
from harnessgym.scheduling.selection import Pick, SelectionPool, Visit
from harnessgym.scheduling.selectors.difficulty import Float64Array, open_groups, success
from harnessgym.scheduling.selectors.sizes import BudgetBlock, blocks, needs_groups, within
from harnessgym.store.task_history import SUCCESS


class GdroSettings(Config):
    """The constants of both adversaries."""

    bins: int = Field(10, ge=2)
    """Number of difficulty bins."""
    hysteresis: float = Field(0.02, ge=0, lt=0.5)
    """How far a task's mean must be beyond its bin's edge to leave the bin."""
    score_ema: float = Field(0.1, gt=0, le=1)
    """Weight of the newest loss in a bin's score."""
    rate: float = Field(0.1, gt=0)
    """η of both adversaries: how much scores count."""
    mix: float = Field(0.15, gt=0, le=1)
    """Gamma of both adversaries: the share of the weight that is spread evenly."""
    sizes: tuple[Annotated[int, Field(ge=2)], ...] = ()
    """Group sizes to choose from. The usual group size must lie between the least and the greatest. Defaults
    to 1/4, 1/2, 1, 3/2 and 2 times the group size."""
    price: float = 0.0
    """μ: cost of a rollout beyond the mean. The budget is spent exactly without it."""


@dataclass(slots=True)
class _State:
    """Bins and scores computed from the visits."""

    passes: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(lambda: [0.0, 0.0]))
    """Visits with a success, and all visits, by task."""
    bin_of: dict[str, int] = field(default_factory=dict)
    scores: dict[int, float] = field(default_factory=dict)
    """Exponential mean of the loss by bin."""
    arms: defaultdict[tuple[int, int], float] = field(default_factory=lambda: defaultdict(float))
    """EXP3 scores by bin and group size."""


class Gdro:
    """Chooses tasks and sizes."""

    settings = GdroSettings

    def __init__(self, settings: GdroSettings, pool: SelectionPool) -> None:
        needs_groups("gdro", pool)
        self._settings = settings
        self._pool = pool
        usual = pool.group_size
        self._sizes = sorted(
            {max(2, size) for size in (usual // 4, usual // 2, usual, 3 * usual // 2, 2 * usual)}
        )
        if settings.sizes:
            self._sizes = sorted(set(settings.sizes))
            within("gdro", "the least of sizes", self._sizes[0], most=usual)
            within("gdro", "the greatest of sizes", self._sizes[-1], least=usual)

    def choose(self, number: int, wanted: int, visits: Sequence[Visit]) -> Sequence[Pick]:
        """See `Selector`."""
        state = self._learnt(visits)
        random = np.random.default_rng([self._pool.seed, number])
        busy_N = open_groups(self._pool, visits)
        picks = list[Pick]()
        for block in blocks(self._pool, number, wanted, visits):
            tasks = [self._task(state, busy_N, random) for _ in range(block.wanted)]
            picks += map(
                Pick, tasks, self._allot(block, [state.bin_of.get(task, 0) for task in tasks], state, random)
            )
        return picks

    def _learnt(self, visits: Sequence[Visit]) -> _State:
        """Replay all visits. Each counts for the bin that its task was in before it."""
        settings = self._settings
        state = _State()
        known = set(self._pool.tasks)
        for visit in visits:
            if not visit.rewards or visit.task not in known:
                continue
            own = state.bin_of.get(visit.task, 0)
            p = success(visit) / len(visit.rewards)
            state.scores[own] = state.scores.get(own, 1 - p) * (
                1 - settings.score_ema
            ) + settings.score_ema * (1 - p)
            price = settings.price * (visit.size - self._pool.group_size)
            state.arms[own, visit.size] -= p * (1 - p) / len(visit.rewards) + price
            passed = state.passes[visit.task]
            passed[0] += max(visit.rewards) > SUCCESS
            passed[1] += 1
            state.bin_of[visit.task] = moved(
                state.bin_of.get(visit.task), passed[0] / passed[1], settings.bins, settings.hysteresis
            )
        return state

    def _task(self, state: _State, busy_N: np.ndarray, random: np.random.Generator) -> str:
        """Draw a task among those with the fewest open groups, and count it in `busy_N`."""
        tasks = self._pool.tasks
        free = np.flatnonzero(busy_N == busy_N.min())
        bins = np.array([state.bin_of.get(tasks[place], 0) for place in free])
        present = np.unique(bins)
        scores = np.array([state.scores.get(int(own), 0.0) for own in present])
        own = random.choice(present, p=weights(scores, self._settings.rate, self._settings.mix))
        place = int(random.choice(free[bins == own]))
        busy_N[place] += 1
        return tasks[place]

    def _allot(
        self, block: BudgetBlock, bins: Sequence[int], state: _State, random: np.random.Generator
    ) -> list[int]:
        settings = self._settings
        likely = [
            np.log(
                weights(
                    np.array([state.arms[own, size] for size in self._sizes]), settings.rate, settings.mix
                )
            )
            for own in bins
        ]
        noisy = [logp + random.gumbel(size=len(self._sizes)) for logp in likely]
        return allot(noisy, self._sizes, block.rollouts, block.groups - block.wanted)


def weights(scores_B: Float64Array, rate: float, mix: float) -> Float64Array:
    """(1-mix) softmax(rate * score) + mix / B, float64 [B]."""
    raised = np.exp(rate * (scores_B - scores_B.max()))
    out: Float64Array = (1 - mix) * raised / raised.sum() + mix / len(scores_B)
    return out


def moved(before: int | None, mean: float, bins: int, hysteresis: float) -> int:
    """The bin of a task with this mean among `bins` equal ones, with hysteresis at the edges of `before`."""
    new_bin = min(bins - 1, int(mean * bins))
    if before is None or new_bin == before:
        return new_bin
    left = (
        mean >= (before + 1) / bins + hysteresis if new_bin > before else mean <= before / bins - hysteresis
    )
    return new_bin if left else before


def allot(scores_G: Sequence[Float64Array], sizes: Sequence[int], budget: int, later: int) -> list[int]:
    """Sizes for G groups with the greatest sum of scores that let `later` more groups spend the rest exactly.

    `scores_G` has one number per size for each group, float64 [len(sizes)]. If no choice spends the budget
    exactly, returns the one that comes closest.
    """
    # Dynamic programming over the rollouts spent so far: the best score and choice for each total. `after`
    # holds every total that the later groups can spend.
    after = {0}
    for _ in range(later):
        after = {spent + size for spent in after for size in sizes}
    choices: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, ())}
    for scores in scores_G:
        reached: dict[int, tuple[float, tuple[int, ...]]] = {}
        for spent, (score, chosen) in choices.items():
            for size, more in zip(sizes, scores, strict=True):
                total = score + float(more)
                if spent + size not in reached or total > reached[spent + size][0]:
                    reached[spent + size] = total, (*chosen, size)
        choices = reached
    missed = {spent: min(abs(budget - spent - rest) for rest in after) for spent in choices}
    return list(max(choices.items(), key=lambda item: (-missed[item[0]], item[1][0]))[1][1])
