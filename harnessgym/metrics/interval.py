"""Means with percentile bootstrap intervals.

See Efron, "Bootstrap Methods: Another Look at the Jackknife", 1979. The given values are resampled. They
should be independent: usually one per task, because rollouts of one task are not independent draws.
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
    """None if there are no values."""
    low: float | None
    """None, like `high`, with fewer than two values, which show no variation."""
    high: float | None

    def as_json(self) -> dict[str, float | None]:
        """The three numbers, rounded to four places."""
        named = {"mean": self.mean, "low": self.low, "high": self.high}
        return {name: None if value is None else round(value, 4) for name, value in named.items()}


def mean_with_interval(values: Sequence[float], seed: int = 0) -> Interval:
    """The mean and its 95 % bootstrap interval. Deterministic for the same values and seed."""
    if not values:
        return Interval(None, None, None)
    mean = sum(values) / len(values)
    if len(values) < 2:
        return Interval(mean, None, None)
    # A fixed seed: the same results must print the same interval.
    draw = random.Random(seed)
    means = sorted(sum(draw.choices(values, k=len(values))) / len(values) for _ in range(_RESAMPLES))
    return Interval(mean, means[int(0.025 * _RESAMPLES)], means[int(0.975 * _RESAMPLES) - 1])


def paired_difference(before: Sequence[float], after: Sequence[float], seed: int = 0) -> Interval:
    """The mean of `after - before` over pairs, and its interval from resampled pairs."""
    return mean_with_interval([new - old for old, new in zip(before, after, strict=True)], seed)


def share_with_interval(hits: int, count: int) -> Interval:
    """A rate and its 95 % Wilson interval (1927), which has a width even for a rate of 0 or 1.

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
