"""Steps: a rollout's trained calls along its branches, for estimators with an advantage per call.

A call that several branches share is a step of each of them and is trained once, with the mean of their
values.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from harnessgym.traces.trajectories import Row, Turn
from trainers.advantages.estimator import Float64Array, Scored, Value


def branches(rows: Sequence[Row]) -> list[list[Turn]]:
    """Per row of a rollout, the turns that this or another row trains. All other turns are context."""
    trained = {turn.call_id for row in rows for turn in row.turns if row.mask[turn.start]}
    return [[turn for turn in row.turns if turn.call_id in trained] for row in rows]


def step_rewards(item: Scored, channel: str, *, outcome: bool) -> list[Float64Array]:
    """Per branch, the reward of every step: the call's own under `channel`; with `outcome` the last step also
    gets the rollout's.
    """
    per_branch = []
    for turns in branches(item.rows):
        rewards = np.array([turn.rewards.get(channel, 0.0) for turn in turns], dtype=np.float64)
        if outcome:
            rewards[-1] += item.reward
        per_branch.append(rewards)
    return per_branch


def discounted(rewards_S: Float64Array, gamma: float) -> Float64Array:
    """The discounted return of every step, float64 [S]."""
    out = np.zeros_like(rewards_S)
    total = 0.0
    for step in range(len(rewards_S) - 1, -1, -1):
        total = rewards_S[step] + gamma * total
        out[step] = total
    return out


def by_call(per_branch: Iterable[Sequence[Turn]], values: Iterable[Float64Array]) -> dict[str, float]:
    """One value per call, from values of steps per branch: the mean over the call's branches."""
    values_by_call = defaultdict[str, list[float]](list)
    for turns, own in zip(per_branch, values, strict=True):
        for turn, value in zip(turns, own, strict=True):
            values_by_call[turn.call_id].append(float(value))
    return {
        call: each[0] if len(set(each)) == 1 else float(np.mean(each))
        for call, each in values_by_call.items()
    }  # not rounded


def spread(rows: Sequence[Row], by_call: Mapping[str, float]) -> list[Value]:
    """Advantages of calls as advantages of their tokens, float32 [T] per row; 0 for tokens that are not
    trained.
    """
    out: list[Value] = []
    for row in rows:
        values = np.zeros(len(row.ids), np.float32)
        for turn in row.turns:
            if row.mask[turn.start]:
                values[turn.start : turn.end] = by_call[turn.call_id]
        out.append(values)
    return out


def standardised(values_N: Float64Array, eps: float) -> Float64Array:
    """(x - mean) / (std + eps) with the population standard deviation; exact zeros if all are equal, or
    there are none.
    """
    if not len(values_N) or (values_N == values_N[0]).all():
        return np.zeros_like(values_N)
    return (values_N - float(values_N.mean())) / (float(values_N.std()) + eps)
