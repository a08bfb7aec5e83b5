"""Stages: each admits a limited number of rollouts at one time and queues the rest in order of arrival.

A rollout holds a place in one stage at a time, so a rollout that waits for a grader does not keep the engine
idle.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from harnessgym.run_config.run import NodeSection


@dataclass(frozen=True, slots=True)
class StageCounts:
    """A stage's counts at one moment."""

    name: str
    limit: int
    waiting: int
    running: int
    done: int
    waited_s: float
    """Seconds waited in total by all rollouts admitted so far."""


class Stage:
    """One stage with `limit` places.

    ```python
    async with stage.place() as waited_s:
        ...
    ```
    """

    def __init__(self, name: str, limit: int) -> None:
        self.name = name
        self.limit = limit
        self.waiting = self.running = self.done = 0
        self.waited_s = 0.0
        self._places = asyncio.Semaphore(limit)

    @asynccontextmanager
    async def place(self) -> AsyncIterator[float]:
        """Wait for a place and hold it. Yields the seconds waited."""
        began = time.perf_counter()
        self.waiting += 1
        try:
            await self._places.acquire()
        finally:
            self.waiting -= 1
        waited = time.perf_counter() - began
        self.waited_s += waited
        self.running += 1
        try:
            yield waited
        finally:
            self.running -= 1
            self.done += 1
            self._places.release()

    def counts(self) -> StageCounts:
        """The present counts."""
        return StageCounts(
            self.name, self.limit, self.waiting, self.running, self.done, round(self.waited_s, 3)
        )


class Stages:
    """The four stages of a node."""

    def __init__(self, options: NodeSection) -> None:
        self.prepare = Stage("prepare", options.prepare_at_once)
        self.run = Stage("run", options.max_running)
        self.reconstruct = Stage("reconstruct", options.reconstruct_at_once)
        self.evaluate = Stage("evaluate", options.evaluate_at_once)
        self._ahead = options.prepared_ahead
        self._behind = options.evaluate_waiting

    @property
    def all(self) -> tuple[Stage, ...]:
        """The stages in the order rollouts pass them."""
        return self.prepare, self.run, self.reconstruct, self.evaluate

    def room(self, in_flight: int) -> int:
        """How many more rollouts may be claimed while `in_flight` are claimed and have not ended.

        Up to the end of `run` there are at most its places plus a few prepared rollouts. Behind it there are
        at most as many as may be evaluated or wait for evaluation.
        """
        behind = sum(stage.waiting + stage.running for stage in (self.reconstruct, self.evaluate))
        before = in_flight - behind
        if behind >= self.evaluate.limit + self._behind:
            return 0
        return max(0, self.run.limit + self._ahead - before)

    def counts(self) -> list[StageCounts]:
        """The counts of all stages."""
        return [stage.counts() for stage in self.all]
