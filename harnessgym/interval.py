"""A mean and how sure it is: percentile bootstrap intervals (Efron, "Bootstrap Methods: Another Look at the
Jackknife", 1979).

What is resampled is whatever the values are of: tasks, mostly, since rollouts of one task are no independent
draws.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

_RESAMPLES = 2_000
_Z = 1.959963984540054


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean with the bounds of its 95 % interval."""

    mean: float | None
    """None without values."""
    low: float | None
    """None, as `high`, with fewer than two values: one says nothing of how they vary."""
    high: float | None

    def as_json(self) -> dict[str, float | None]:
        """The three of them, rounded to four places."""
        named = {"mean": self.mean, "low": self.low, "high": self.high}
        return {name: None if value is None else round(value, 4) for name, value in named.items()}


def mean_with_interval(values: Sequence[float], seed: int = 0) -> Interval:
    """The mean and its 95 % bootstrap interval, the same every time for the same values and seed."""
    if not values:
        return Interval(None, None, None)
    mean = sum(values) / len(values)
    if len(values) < 2:
        return Interval(mean, None, None)
    draw = random.Random(seed)
    means = sorted(sum(draw.choices(values, k=len(values))) / len(values) for _ in range(_RESAMPLES))
    return Interval(mean, means[int(0.025 * _RESAMPLES)], means[int(0.975 * _RESAMPLES) - 1])


def paired_difference(before: Sequence[float], after: Sequence[float], seed: int = 0) -> Interval:
    """The mean of `after - before`, element by element, and its interval: pairs are resampled, not their
    members.
    """
    return mean_with_interval([new - old for old, new in zip(before, after, strict=True)], seed)


def share_with_interval(hits: int, count: int) -> Interval:
    """A rate, and Wilson's 95 % interval for it (1927), which also says how sure a rate of 0 or 1 is.

    Raises `ValueError` unless 0 <= hits <= count.
    """
    if not 0 <= hits <= count:
        raise ValueError(f"{hits} of {count} is no share")
    if not count:
        return Interval(None, None, None)
    share = hits / count
    z2 = _Z * _Z
    middle = (share + z2 / (2 * count)) / (1 + z2 / count)
    half = _Z * math.sqrt(share * (1 - share) / count + z2 / (4 * count * count)) / (1 + z2 / count)
    return Interval(
        share, max(0.0, middle - half) if hits else 0.0, min(1.0, middle + half) if hits < count else 1.0
    )
