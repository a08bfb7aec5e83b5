"""Facts about a row that exports give to trainers in addition to its tokens."""

import numpy as np

from harnessgym.errors import TraceError
from harnessgym.tokens import FloatArray
from harnessgym.traces.export import TracedRollout
from harnessgym.traces.trajectories import Row


def first_trained(row: Row) -> int:
    """Return the index of the first trained token. Every row trains at least one."""
    return int(np.argmax(row.mask))


def reward_metrics(rollout: TracedRollout) -> dict[str, float]:
    """Return the rewards of the rollout by channel."""
    return {item.channel: item.value for item in rollout.graph.rewards if item.unit == "rollout"}


def advantages_of(rollout: TracedRollout, row: Row) -> FloatArray | None:
    """Return the advantages that the tokens were trained with, float32 [T]; 0.0 where mask is 0.

    None if its policy was not trained on the rollout.
    """
    if row.policy_id not in rollout.trained_by:
        return None
    out = np.zeros(len(row.ids), np.float32)
    for turn in row.turns:
        segment = rollout.graph.calls[turn.call_id].completion_segment
        for start, end, value in rollout.advantages.get(segment or "", ()):
            out[turn.start + start : turn.start + end] = value
    return np.where(row.mask == 1, out, np.float32(0.0)).astype(np.float32)


def scalar_advantage(rollout: TracedRollout, row: Row) -> float:
    """Return one advantage for a whole row: the mean of those that its tokens were trained with.

    For a rollout that was not trained, it is the reward, centred and scaled within the group as TRL does.
    Raises `TraceError` if there is no reward either.
    """
    trained = advantages_of(rollout, row)
    if trained is not None:
        return float(trained[row.mask == 1].mean(dtype=np.float64))
    if rollout.reward is None:
        raise TraceError(
            f"Rollout {rollout.id} was not trained and has no reward under the channel 'reward', and "
            "samples for TRL need an advantage. Leave it out: `--min-reward`."
        )
    group_rewards = np.asarray(rollout.group_rewards, np.float64)
    return float((rollout.reward - group_rewards.mean()) / (group_rewards.std() + 1e-8))
