"""Online estimates of how hard each task is for the policy: Beta posteriors with forgetting.

A reward clipped to [0, 1] counts as that many successes, so a reward between 0 and 1 is a partial success.
"""

from collections.abc import Sequence
from dataclasses import dataclass

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
