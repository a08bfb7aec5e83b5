"""InSight: tasks of medium difficulty whose next group would be most informative.

Tasks have Beta posteriors with forgetting. A task's score is m(1-m) exp(-eta (m-mu)^2) * I(R; phi), where m
is the posterior mean and I the mutual information between the successes R of its next group and its success
rate phi, in closed form from the entropy of the beta-binomial. The best of a random sample of tasks are
chosen. Formula and constants are the paper's, with the mu of its ablation (0.3), because the 3.0 printed in
its appendix is not a success rate.
"""

from collections.abc import Sequence

import numpy as np
from pydantic import Field

from harnessgym.config import Config
from harnessgym.scheduling.selection import Pick, SelectionPool, Visit
from harnessgym.scheduling.selectors.difficulty import (
    Float64Array,
    beliefs,
    best,
    digamma,
    log_beta,
    log_gamma,
    open_groups,
)


class InsightSettings(Config):
    """The constants of the score."""

    forget: float = Field(1.0, gt=0, le=1)
    """λ: share of a task's evidence that is left when the task is visited again."""
    sharpness: float = Field(3.0, ge=0)
    """η: how sharply the target is preferred."""
    target: float = Field(0.3, ge=0, le=1)
    """μ: the preferred mean success rate."""
    candidates: int = Field(16, gt=0)
    """Tasks drawn per chosen task."""


class Insight:
    """Chooses tasks. Groups have their usual size."""

    settings = InsightSettings

    def __init__(self, settings: InsightSettings, pool: SelectionPool) -> None:
        self._settings = settings
        self._pool = pool

    def choose(self, number: int, wanted: int, visits: Sequence[Visit]) -> Sequence[Pick]:
        """See `Selector`."""
        pool = self._pool
        settings = self._settings
        known = beliefs(pool, visits, visit_decay=settings.forget)
        scores_N = score(known.alpha_N, known.beta_N, pool.group_size, settings.sharpness, settings.target)
        busy_N = open_groups(pool, visits)
        free = np.flatnonzero(busy_N == busy_N.min())
        if len(free) < wanted:
            free = np.arange(len(pool.tasks))
        size = min(settings.candidates * max(1, wanted), len(free))
        drawn = np.random.default_rng([pool.seed, number]).choice(free, size, replace=False)
        chosen = best(scores_N[drawn], busy_N[drawn], wanted)
        return [Pick(pool.tasks[drawn[place]], pool.group_size) for place in chosen]


def score(
    a_N: Float64Array, b_N: Float64Array, rollouts: int, sharpness: float, target: float
) -> Float64Array:
    """m(1-m) exp(-sharpness (m-target)^2) * I(R; phi), float64 [N]."""
    m_N = a_N / (a_N + b_N)
    return m_N * (1 - m_N) * np.exp(-sharpness * (m_N - target) ** 2) * information(a_N, b_N, rollouts)


def information(a_N: Float64Array, b_N: Float64Array, rollouts: int) -> Float64Array:
    """I(R; phi) = H(R) - E[H(R | phi)] in nats, float64 [N].

    R ~ Binomial(rollouts, phi), phi ~ Beta(a, b).
    """
    k = np.arange(rollouts + 1, dtype=np.float64)[:, None]
    one = np.ones(1)
    # In logarithms, because binomial coefficients and beta functions overflow for large groups.
    ways = log_gamma((rollouts + 1) * one) - log_gamma(k + 1) - log_gamma(rollouts - k + 1)
    logp_KN = ways + log_beta(a_N + k, b_N + rollouts - k) - log_beta(a_N, b_N)
    p_KN = np.exp(logp_KN)
    known_N = (p_KN * ways).sum(0) + rollouts * (_mean_p_log_p(a_N, b_N) + _mean_p_log_p(b_N, a_N))
    information_N: Float64Array = known_N - (p_KN * logp_KN).sum(0)
    # Rounding can make an information of 0 slightly negative.
    return np.maximum(information_N, 0.0)


def _mean_p_log_p(a_N: Float64Array, b_N: Float64Array) -> Float64Array:
    """E[p ln p] of p ~ Beta(a, b)."""
    return a_N / (a_N + b_N) * (digamma(a_N + 1) - digamma(a_N + b_N + 1))
