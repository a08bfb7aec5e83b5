"""Special functions that selectors need and numpy lacks."""

import math
from functools import lru_cache

import numpy as np

from harnessgym.scheduling.selectors.difficulty import Float64Array


def log_gamma(x: Float64Array) -> Float64Array:
    """Log Γ(x) for x > 0, in x's shape. Stirling's series after a shift to x >= 10; error below 1e-12."""
    x = np.asarray(x, dtype=np.float64)
    shift = np.zeros_like(x)
    for _ in range(10):
        small = x < 10
        shift = shift + np.where(small, np.log(x), 0.0)
        x = np.where(small, x + 1, x)
    inverse = 1 / (x * x)
    series = (1 / 12 - inverse * (1 / 360 - inverse * (1 / 1260 - inverse * (1 / 1680 - inverse / 1188)))) / x
    return (x - 0.5) * np.log(x) - x + 0.5 * math.log(2 * math.pi) + series - shift


def digamma(x: Float64Array) -> Float64Array:
    """The derivative of ln Γ(x) for x > 0, by the same method."""
    x = np.asarray(x, dtype=np.float64)
    shift = np.zeros_like(x)
    for _ in range(10):
        small = x < 10
        shift = shift + np.where(small, 1 / x, 0.0)
        x = np.where(small, x + 1, x)
    inverse = 1 / (x * x)
    series = inverse * (
        1 / 12 - inverse * (1 / 120 - inverse * (1 / 252 - inverse * (1 / 240 - inverse / 132)))
    )
    return np.log(x) - 0.5 / x - series - shift


def log_beta(a: Float64Array, b: Float64Array) -> Float64Array:
    """Logarithm of the beta function B(a, b)."""
    return log_gamma(a) + log_gamma(b) - log_gamma(np.asarray(a) + np.asarray(b))


@lru_cache(maxsize=4096)
def t_quantile(probability: float, degrees: int) -> float:
    """Quantile of Student's t with integer degrees of freedom for a probability above 1/2, by bisection."""
    low, high = 0.0, 1.0
    while _t_below(high, degrees) < probability:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if _t_below(middle, degrees) < probability else (low, middle)
    return (low + high) / 2


def _t_below(t: float, degrees: int) -> float:
    """P(T <= t) for t >= 0 (Abramowitz and Stegun 26.7.3 and 26.7.4)."""
    angle = math.atan(t / math.sqrt(degrees))
    sine = math.sin(angle)
    square = math.cos(angle) ** 2
    odd = degrees % 2
    term = math.cos(angle) if odd else 1.0
    total = 0.0
    for k in range(degrees // 2):
        total += term
        term *= square * ((2 * k + 2) / (2 * k + 3) if odd else (2 * k + 1) / (2 * k + 2))
    between = 2 / math.pi * (angle + sine * total) if odd else sine * total
    return 0.5 + between / 2
