"""Means over seeds."""

import math
import statistics
from collections.abc import Sequence

from harnessgym.scheduling.selectors.difficulty import t_quantile


def t_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean, and the ends of its 95 % t-interval; all equal for a single value.

    With few seeds a bootstrap is too narrow: of three, its interval is no more than their range.
    """
    mean = statistics.mean(values)
    if len(values) < 2:
        return mean, mean, mean
    half = t_quantile(0.975, len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return mean, mean - half, mean + half
