"""The set of workers that may take a call, so that routing need not scan all workers for each call."""

import random

from harnessgym.scheduling.routing import prefer
from harnessgym.simulation.worker import SimulatedWorker


class ReadyWorkers:
    """A set of workers that tracks the least load. Adding, removing and choosing take constant time."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._workers: list[SimulatedWorker] = []
        self._places: dict[int, int] = {}
        self._loads: list[int] = [0]
        """Number of workers at each load."""
        self._least = 0

    def __len__(self) -> int:
        return len(self._workers)

    def __contains__(self, worker: SimulatedWorker) -> bool:
        return worker.number in self._places

    def add(self, worker: SimulatedWorker) -> None:
        """Add a worker."""
        self._places[worker.number] = len(self._workers)
        self._workers.append(worker)
        self._count(worker.load, 1)

    def remove(self, worker: SimulatedWorker) -> None:
        """Remove a worker."""
        # The last worker takes the freed place, so that removal does not shift the others.
        place = self._places.pop(worker.number)
        last = self._workers.pop()
        if last is not worker:
            self._workers[place] = last
            self._places[last.number] = place
        self._count(worker.load, -1)

    def changed(self, worker: SimulatedWorker, before: int) -> None:
        """Note that a worker's load has changed from `before`."""
        if worker.number in self._places:
            self._count(worker.load, 1)
            self._count(before, -1)

    @property
    def least(self) -> int:
        """The smallest load. Raises `IndexError` if there is no worker."""
        while not self._loads[self._least]:
            self._least += 1
        return self._least

    def choose(self, owner: SimulatedWorker | None) -> SimulatedWorker | None:
        """The worker for a call by the proxy's rule; None if there is none."""
        if not self._workers:
            return None
        known = owner if owner is not None and owner.number in self._places else None
        return prefer(known, self._two(), self.least)

    def _two(self) -> list[SimulatedWorker]:
        """Two different workers at random, or the only one. Costs a third of `Random.sample`."""
        count = len(self._workers)
        draw = self._rng.random
        if count == 1:
            return self._workers[:]
        first = int(draw() * count)
        second = int(draw() * (count - 1))
        return [self._workers[first], self._workers[second + (second >= first)]]

    def _count(self, load: int, change: int) -> None:
        while load >= len(self._loads):
            self._loads.append(0)
        self._loads[load] += change
        if change > 0:
            self._least = min(self._least, load)
