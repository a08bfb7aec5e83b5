"""Times of one thing done often, and how they are summed up."""

import statistics
import time
from collections.abc import Awaitable, Callable, Sequence

Figures = dict[str, float]


def spread(seconds: Sequence[float]) -> Figures:
    """Milliseconds: median, 95th percentile and largest, and how many there were."""
    ordered = sorted(1e3 * value for value in seconds)
    p95 = ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]
    return {
        "p50_ms": statistics.median(ordered),
        "p95_ms": p95,
        "max_ms": ordered[-1],
        "n": float(len(ordered)),
    }


async def repeat(count: int, once: Callable[[], Awaitable[float]]) -> Figures:
    """`once`, `count` times after three that warm up; it says itself how many seconds of it count."""
    for _ in range(3):
        await once()
    return spread([await once() for _ in range(count)])


class Clock:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self._began = time.perf_counter()

    def __call__(self) -> float:
        """How many."""
        return time.perf_counter() - self._began
