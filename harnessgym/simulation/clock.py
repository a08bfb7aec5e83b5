"""Virtual time: what happens next is what is due first, and nothing takes real time."""

import heapq
from collections.abc import Callable
from typing import Any


class Clock:
    """A heap of events. Those of one moment happen in the order in which they were asked for."""

    def __init__(self) -> None:
        self.now = 0.0
        """Virtual seconds since the start."""
        self.events = 0
        """How many have happened."""
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._asked = 0

    def after(self, delay: float, action: Callable[..., None], *arguments: Any) -> None:
        """Do something in `delay` seconds. Raises ValueError for a time that has passed: the clock never
        runs backwards.
        """
        if not delay >= 0:
            raise ValueError(f"An event was asked for {delay} s from now: time does not run backwards.")
        self._asked += 1
        heapq.heappush(self._heap, (self.now + delay, self._asked, action, arguments))

    @property
    def next_at(self) -> float:
        """When the next event happens; infinity if there is none."""
        return self._heap[0][0] if self._heap else float("inf")

    def step(self) -> bool:
        """Let the next event happen; False if there is none."""
        if not self._heap:
            return False
        when, _, action, arguments = heapq.heappop(self._heap)
        assert when >= self.now, "virtual time ran backwards"
        self.now = when
        self.events += 1
        action(*arguments)
        return True
