"""GAE: advantages of single tokens from a value function."""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from harnessgym.tokens import FloatArray
from trainers.advantages.estimator import Float64Array, Scored
from trainers.advantages.steps import branches, step_rewards
from trainers.algorithms import Algorithm

GAE = Algorithm(
    "advantage", "gae",
    "A_t = sum_k (gamma lambda)^k (r_(t+k) + gamma V_(t+k+1) - V_(t+k)), V = 0 behind the last token "
    "(for a value head; not a choice of `trainer.advantage`)",
    "arXiv 1506.02438", "paper", "the double sum, written out in float64",
)  # fmt: skip


def gae(rewards_T: Float64Array, values_T: Float64Array, gamma: float = 1.0, lam: float = 0.95) -> Float64Array:
    """Generalised advantage estimates, float64 [T] (arXiv 1506.02438), of the T tokens that a policy sampled in order.

    `values_T` are V before each token; after the last one nothing is to come. What the value function should learn is
    advantages + values.
    """
    advantages_T, ahead, following = np.zeros(len(rewards_T)), 0.0, 0.0
    for t in range(len(rewards_T) - 1, -1, -1):
        ahead = float(rewards_T[t] + gamma * following - values_T[t] + gamma * lam * ahead)
        advantages_T[t], following = ahead, float(values_T[t])
    return advantages_T


def gae_of_rollout(
    item: Scored, values: Sequence[FloatArray], gamma: float = 1.0, lam: float = 0.95, channel: str = "reward"
) -> list[FloatArray]:
    """Of a rollout's trained tokens, float32 [T] per row, 0 where the row trains nothing; `values` is per row, float [T].

    Along each branch the tokens of its steps follow one another, and what the environment said between them takes no time. A
    call's reward under `channel` comes with its last token, the rollout's with the branch's. A token that several branches
    share gets the mean of what they say.
    """
    said = defaultdict[str, list[Float64Array]](list)
    per_branch = zip(branches(item.rows), step_rewards(item, channel, outcome=True), values, strict=True)
    for turns, rewards, row_values in per_branch:
        at = np.concatenate([np.arange(turn.start, turn.end) for turn in turns])
        rewards_T = np.zeros(len(at))
        ends = np.cumsum([turn.end - turn.start for turn in turns])
        rewards_T[ends - 1] = rewards
        found = np.split(gae(rewards_T, row_values[at].astype(np.float64), gamma, lam), ends[:-1])
        for turn, own in zip(turns, found, strict=True):
            said[turn.call_id].append(own)
    out = [np.zeros(len(row.ids), np.float32) for row in item.rows]
    for row, advantages in zip(item.rows, out, strict=True):
        for turn in row.turns:
            if row.mask[turn.start]:
                advantages[turn.start : turn.end] = np.mean(said[turn.call_id], axis=0)
    return out
