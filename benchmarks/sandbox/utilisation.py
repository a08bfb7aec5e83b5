"""How busy environments are: pipelined against batch-synchronous, on the same latency draws.

Simulated: the draws come from a seed, and what takes that long is a sleep. An environment is busy while a
rollout runs in it, and idle while it waits for others, for graders or for the trainer. Utilisation is busy /
(busy + idle), which is DART's measure (arXiv 2509.23866 publishes a factor of 5.5 between the two on its own
load).
"""

import asyncio
import random
from dataclasses import dataclass

from benchmarks.sandbox.timing import Clock


@dataclass(frozen=True, slots=True)
class Draw:
    """One rollout's seconds."""

    run: float
    grade: float


@dataclass(frozen=True, slots=True)
class Load:
    """What is drawn: `batches` of `size` rollouts on `environments`, and a training step after each batch."""

    environments: int = 16
    size: int = 32
    batches: int = 6
    run_s: float = 0.20
    """Median of a lognormal."""
    run_sigma: float = 1.0
    grade_s: float = 0.05
    train_s: float = 0.50

    def draws(self, seed: int) -> list[list[Draw]]:
        """By batch."""
        draw = random.Random(seed)

        def one() -> Draw:
            return Draw(
                self.run_s * draw.lognormvariate(0, self.run_sigma),
                self.grade_s * draw.lognormvariate(0, 0.5),
            )

        return [[one() for _ in range(self.size)] for _ in range(self.batches)]


async def synchronous(load: Load, seed: int) -> dict[str, float]:
    """A batch is run to its last rollout, graded as a whole, trained on; then comes the next."""
    clock, busy = Clock(), 0.0
    for batch in load.draws(seed):
        gate = asyncio.Semaphore(load.environments)

        async def run(draw: Draw, gate: asyncio.Semaphore = gate) -> None:
            async with gate:
                await asyncio.sleep(draw.run)

        await asyncio.gather(*map(run, batch))
        await asyncio.gather(*(asyncio.sleep(draw.grade) for draw in batch))
        busy += sum(draw.run for draw in batch)
        await asyncio.sleep(load.train_s)
    return _figures(load, busy, clock())


async def pipelined(load: Load, seed: int) -> dict[str, float]:
    """Environments take the next rollout at once; grading has places of its own; training goes on beside."""
    clock = Clock()
    environments, graders = asyncio.Semaphore(load.environments), asyncio.Semaphore(load.environments)
    finished: asyncio.Queue[None] = asyncio.Queue()
    batches = load.draws(seed)

    async def roll(draw: Draw) -> None:
        async with environments:
            await asyncio.sleep(draw.run)
        async with graders:
            await asyncio.sleep(draw.grade)
        finished.put_nowait(None)

    async def train() -> None:
        for _ in batches:
            for _ in range(load.size):
                await finished.get()
            await asyncio.sleep(load.train_s)

    training = asyncio.create_task(train())
    await asyncio.gather(*(roll(draw) for batch in batches for draw in batch))
    rolled = clock()
    await training
    busy = sum(draw.run for batch in batches for draw in batch)
    return {**_figures(load, busy, rolled), "wall_s": clock()}


def _figures(load: Load, busy: float, wall_s: float) -> dict[str, float]:
    return {"utilisation": busy / (load.environments * wall_s), "wall_s": wall_s}
