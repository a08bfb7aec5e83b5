"""A simulated learner for selectors: tasks that succeed by chance, the more often the more they were trained
with a signal.

Task i succeeds with probability p_i = sigmoid(theta_i + shared). A group of n rollouts whose rewards have the
standard deviation s moves its task: theta_i += rate * n / group_size * s, which is the GRPO step on theta_i
(with advantages (r - mean) / s the mean of advantage * reward is s), weighted by its rollouts. `transfer` of
every move is everybody's: shared += transfer * move. Groups of equal rewards move nothing. Tasks that cannot
be solved never succeed.

With `averaged` the moves of a step are divided by the share of its groups that had a signal: then a step is
as long with few of them as with many, as where an optimizer divides by what it was given.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from harnessgym.scheduling.selection import SelectionPool, Visit, make_selector


@dataclass(frozen=True, slots=True)
class World:
    """Which tasks, and how they are learnt."""

    name: str
    alpha: float
    """Success rates at the start are drawn from Beta(alpha, beta)."""
    beta: float
    tasks: int = 200
    unsolvable: float = 0.1
    """Share of tasks that never succeed."""
    rate: float = 0.5
    transfer: float = 0.005
    averaged: bool = False
    group_size: int = 8
    groups_per_step: int = 16
    rollouts: int = 12_800
    """Budget of a run."""


@dataclass(frozen=True, slots=True)
class Arm:
    """What is compared."""

    name: str
    selector: str
    refill: bool = False
    """Groups without a signal are given up and replaced in the batch, as `filter.zero_signal = "refill"`
    does."""


ARMS = (
    Arm("uniform", "uniform"),
    Arm("dapo", "uniform", refill=True),
    Arm("vade", "vade"),
    Arm("insight", "insight"),
    Arm("xrpo", "xrpo"),
    Arm("gdro", "gdro"),
    Arm("dars", "dars"),
    Arm("dart", "dart"),
    Arm("vade + dapo", "vade", refill=True),
)
WORLDS = (
    World("either", 0.5, 0.5),
    World("hard", 0.3, 1.5),
    World("either, averaged", 0.5, 0.5, averaged=True),
)
"""either: most tasks nearly always fail or nearly always succeed. hard: most fail."""
_REFILL_BATCHES = 3


class Learner:
    """The tasks of one world and seed."""

    def __init__(self, world: World, seed: int) -> None:
        self.world, self.random = world, np.random.default_rng([seed, 7])
        rates_N = np.clip(self.random.beta(world.alpha, world.beta, world.tasks), 1e-4, 1 - 1e-4)
        self.theta_N, self.shared = np.log(rates_N / (1 - rates_N)), 0.0
        self.solvable_N = self.random.random(world.tasks) >= world.unsolvable

    def rates(self) -> np.ndarray:
        """Success rates, float64 [N]."""
        out: np.ndarray = self.solvable_N / (1 + np.exp(-(self.theta_N + self.shared)))
        return out

    def rollouts(self, task: int, number: int) -> tuple[float, ...]:
        """Rewards of so many rollouts."""
        rate = self.solvable_N[task] / (1 + math.exp(-(self.theta_N[task] + self.shared)))
        return tuple((self.random.random(number) < rate).astype(float).tolist())

    def train(self, batch: Sequence[Visit], place: dict[str, int]) -> None:
        """One step on a batch of groups."""
        world = self.world
        moves = [
            world.rate * len(visit.rewards) / world.group_size * float(np.std(visit.rewards))
            for visit in batch
        ]
        with_signal = sum(move > 0 for move in moves)
        scale = len(moves) / with_signal if world.averaged and with_signal else 1.0
        for visit, move in zip(batch, moves, strict=True):
            self.theta_N[place[visit.task]] += scale * move
            self.shared += world.transfer * scale * move


def play(world: World, arm: Arm, seed: int) -> dict[str, Any]:
    """One run: batches until the budget of rollouts is spent. All figures are simulated.

    `curve` has pairs of rollouts spent and the mean success rate over all tasks, at the start and after every
    step.
    """
    learner = Learner(world, seed)
    pool = SelectionPool(
        tuple(f"t{n}" for n in range(world.tasks)), world.group_size, world.groups_per_step, seed
    )
    place = {task: index for index, task in enumerate(pool.tasks)}
    selector = make_selector(arm.selector, {}, pool)
    visits, spent, steps = list[Visit](), 0, 0
    curve = [(0, float(learner.rates().mean()))]
    while spent < world.rollouts:
        batch, given_up = list[Visit](), 0
        while len(batch) < world.groups_per_step and spent < world.rollouts:
            for pick in selector.choose(len(visits), world.groups_per_step - len(batch), visits):
                size = min(pick.rollouts, world.rollouts - spent)
                if not size:
                    break
                spent += size
                visits.append(Visit(pick.task, size, steps, learner.rollouts(place[pick.task], size)))
                signal = len(set(visits[-1].rewards)) > 1
                if arm.refill and not signal and given_up < _REFILL_BATCHES * world.groups_per_step:
                    given_up += 1
                else:
                    batch.append(visits[-1])
        learner.train(batch, place)
        steps += 1
        curve.append((spent, float(learner.rates().mean())))
    signal = [visit for visit in visits if len(set(visit.rewards)) > 1]
    rates_N = learner.rates()
    return {
        "curve": curve,
        "final": float(rates_N.mean()),
        "hardest": float(np.sort(rates_N[learner.solvable_N])[: world.tasks // 5].mean()),
        "signal": sum(visit.size for visit in signal) / spent,
        "steps": steps,
        "rollouts": spent,
        "groups": len(visits),
        "tasks_seen": len({visit.task for visit in visits}),
    }


def sooner(curve: Sequence[tuple[int, float]], level: float) -> float | None:
    """Rollouts after which a curve is at a level, interpolated; None if it never is."""
    for (before, low), (after, high) in pairwise(curve):
        if high >= level:
            return before + (after - before) * (level - low) / (high - low) if high > low else float(after)
    return None
