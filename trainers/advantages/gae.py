"""GAE: advantages of single tokens from a value function."""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from harnessgym.tokens import FloatArray
from harnessgym.traces.trajectories import Row, Turn
from trainers.advantages.estimator import Float64Array, Scored
from trainers.algorithms import AlgorithmRow

GAE = AlgorithmRow(
    "advantage", "gae",
    "A_t = sum_k (gamma lambda)^k (r_(t+k) + gamma V_(t+k+1) - V_(t+k)), V = 0 behind the last token (of "
    "`algorithm = \"ppo\"`; not a choice of `trainer.advantage`)",
    "arXiv 1506.02438", "paper", "the double sum, written out in float64",
)  # fmt: skip


def gae(
    rewards_T: Float64Array, values_T: Float64Array, gamma: float = 1.0, lam: float = 0.95
) -> Float64Array:
    """Generalised advantage estimates, float64 [T] (arXiv 1506.02438), of T sampled tokens in order.

    `values_T` is V before each token; V after the last one is 0. The value function's targets are advantages
    + values.
    """
    advantages_T = np.zeros(len(rewards_T))
    ahead = 0.0
    following = 0.0
    for t in range(len(rewards_T) - 1, -1, -1):
        ahead = float(rewards_T[t] + gamma * following - values_T[t] + gamma * lam * ahead)
        advantages_T[t], following = ahead, float(values_T[t])
    return advantages_T


def gae_of_rollout(
    item: Scored,
    values: Sequence[FloatArray],
    gamma: float = 1.0,
    lam: float = 0.95,
    channel: str = "reward",
    penalties: Sequence[FloatArray] | None = None,
) -> list[FloatArray]:
    """Advantages of a rollout's trained tokens, float32 [T] per row, 0 elsewhere; `values` is float [T] per
    row.

    Each agent has its own sequence: the tokens of its trained calls, in the order in which the calls began,
    across branches and rows. Text of the environment and of other agents in between takes no time. A call's
    reward under `channel` comes with its last token, and the rollout's reward with the last token of each
    agent. `penalties`, float [T] per row, are subtracted from the rewards of single tokens.
    """
    out = [np.zeros(len(row.ids), np.float32) for row in item.rows]
    for steps in _sequences(item.rows):
        values_T = np.concatenate([values[at][turn.start : turn.end] for at, turn in steps]).astype(
            np.float64
        )
        ends = np.cumsum([turn.end - turn.start for _, turn in steps])
        rewards_T = np.zeros(len(values_T))
        rewards_T[ends - 1] = [turn.rewards.get(channel, 0.0) for _, turn in steps]
        rewards_T[-1] += item.reward
        if penalties is not None:
            rewards_T -= np.concatenate([penalties[at][turn.start : turn.end] for at, turn in steps])
        advantages = np.split(gae(rewards_T, values_T, gamma, lam), ends[:-1])
        for (at, turn), own in zip(steps, advantages, strict=True):
            out[at][turn.start : turn.end] = own
    return out


def _sequences(rows: Sequence[Row]) -> list[list[tuple[int, Turn]]]:
    """Per agent, its trained calls in order, each with the index of the row that trains it."""
    by_agent = defaultdict[str, list[tuple[int, Turn]]](list)
    for at, row in enumerate(rows):
        for turn in row.turns:
            if row.mask[turn.start]:
                by_agent[turn.agent_id].append((at, turn))
    return [sorted(steps, key=lambda step: (step[1].place, step[1].call_id)) for steps in by_agent.values()]
