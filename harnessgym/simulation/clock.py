"""Virtual time: events happen in the order they are due, without real waiting."""

import heapq
from collections.abc import Callable
from typing import Any


class Clock:
    """A heap of events. Events due at the same moment happen in the order they were scheduled."""

    def __init__(self) -> None:
        self.now = 0.0
        """Virtual seconds since the start."""
        self.events = 0
        """Number of events so far."""
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._asked = 0

    def after(self, delay: float, action: Callable[..., None], *arguments: Any) -> None:
        """Schedule `action` in `delay` seconds. Raises `ValueError` for a negative delay."""
        if not delay >= 0:
            raise ValueError(
                f"An event cannot be scheduled {delay} s from now: virtual time does not run backwards."
            )
        # The counter breaks ties by order of scheduling, and keeps the heap from comparing actions.
        self._asked += 1
        heapq.heappush(self._heap, (self.now + delay, self._asked, action, arguments))

    @property
    def next_at(self) -> float:
        """Time of the next event; infinity if there is none."""
        return self._heap[0][0] if self._heap else float("inf")

    def step(self) -> bool:
        """Run the next event. False if there is none."""
        if not self._heap:
            return False
        when, _, action, arguments = heapq.heappop(self._heap)
        assert when >= self.now, "virtual time ran backwards"
        self.now = when
        self.events += 1
        action(*arguments)
        return True
