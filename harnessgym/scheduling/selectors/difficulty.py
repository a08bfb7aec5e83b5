"""Online estimates of how hard each task is for the policy: Beta posteriors with forgetting.

A reward clipped to [0, 1] counts as that many successes, so a reward between 0 and 1 is a partial success.
The special functions are those that selectors need and numpy lacks.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from harnessgym.scheduling.selection import SelectionPool, Visit

Float64Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Beliefs:
    """Beta posteriors of all tasks of a pool, in its order; float64 [N] each."""

    alpha_N: Float64Array
    """Successes, including the prior's."""
    beta_N: Float64Array
    """Failures, including the prior's."""

    @property
    def mean_N(self) -> Float64Array:  # noqa: N802 - the suffix names the shape
        """Expected success rate, float64 [N]."""
        return self.alpha_N / (self.alpha_N + self.beta_N)


def success(visit: Visit) -> float:
    """Sum of the successes of a visit's rollouts."""
    return sum(min(1.0, max(0.0, reward)) for reward in visit.rewards)


def beliefs(
    pool: SelectionPool,
    visits: Sequence[Visit],
    *,
    prior: float = 1.0,
    visit_decay: float = 1.0,
    version_decay: float = 1.0,
) -> Beliefs:
    """Beta(prior, prior) updated by visits in order of submission.

    Evidence decays towards the prior at two scales: by `visit_decay` on each further visit to the same task,
    and by `version_decay` for each policy version between a visit and the newest one of any task.
    """
    place = {task: index for index, task in enumerate(pool.tasks)}
    newest = max((visit.version for visit in visits), default=0)
    counts_N2 = np.zeros((len(pool.tasks), 2))
    for visit in visits:
        if visit.rewards and visit.task in place:
            won = success(visit)
            weight = version_decay ** (newest - visit.version)
            counts = counts_N2[place[visit.task]]
            counts *= visit_decay
            counts += weight * won, weight * (len(visit.rewards) - won)
    return Beliefs(counts_N2[:, 0] + prior, counts_N2[:, 1] + prior)


def open_groups(pool: SelectionPool, visits: Sequence[Visit]) -> npt.NDArray[np.int64]:
    """Number of unfinished groups of each task, int64 [N]."""
    place = {task: index for index, task in enumerate(pool.tasks)}
    busy_N = np.zeros(len(pool.tasks), dtype=np.int64)
    for visit in visits:
        if visit.open and visit.task in place:
            busy_N[place[visit.task]] += 1
    return busy_N


def best(scores_N: Float64Array, busy_N: npt.NDArray[np.int64], wanted: int) -> list[int]:
    """Indices of the `wanted` highest scores, with tasks that have fewer open groups first.

    A task may be chosen more than once. While a group is open its result is unknown, so by score alone the
    same task would be chosen again and again.
    """
    busy = busy_N.copy()
    out = list[int]()
    for _ in range(wanted):
        out.append(int(np.lexsort((-scores_N, busy))[0]))
        busy[out[-1]] += 1
    return out


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
