"""Training rows as TRL's samples.

The prompt of a sample is the part of its row before the first trained token; the completion is the rest, with
text of tools and users masked. Ids, mask and logprobs are the recorded ones: nothing is tokenised again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from harnessgym.errors import TrainerError
from harnessgym.tokens import FloatArray
from harnessgym.traces.exports.row_facts import first_trained
from harnessgym.traces.trajectories import Row
from trainers.batch import LoadedGroup


@dataclass(frozen=True, slots=True)
class Sample:
    """A row as TRL has it; the lists of the completion have one length."""

    rollout_id: str
    prompt_ids: list[int]
    completion_ids: list[int]
    logprobs: list[float]
    """Logprobs of the behaviour policy; 0.0 where the mask is 0."""
    env_mask: list[int]
    """1 where the policy sampled the token and this sample trains it."""
    reward: float | None
    """None if the group has no rollout at this index; TRL leaves it out of means."""


def sample_of(row: Row, reward: float | None) -> Sample:
    """A row that trains a token."""
    start = first_trained(row)
    completion = row.ids[start:].tolist(), row.logprobs[start:].tolist(), row.mask[start:].tolist()
    return Sample(row.rollout_id, row.ids[:start].tolist(), *completion, reward)


def empty_sample(rollout_id: str, reward: float | None) -> Sample:
    """A sample that trains nothing: a prompt of one token and a masked completion of one token."""
    return Sample(rollout_id, [0], [0], [0.0], [0], reward)


@dataclass(frozen=True, slots=True)
class SampledBatch:
    """One sample per rollout of each group, and further samples of the rollouts with several rows."""

    first: tuple[Sample, ...]
    """`size` samples for each group, in the groups' order."""
    further: tuple[tuple[int, Sample], ...]
    """Pairs of the index in `first` of the rollout's first sample, and a further sample."""


def samples_of(groups: Sequence[LoadedGroup], size: int) -> SampledBatch:
    """The samples of groups of at most `size` rollouts. A rollout that is missing, was not graded or trains
    nothing has an empty sample.

    Raises `TrainerError` for a larger group: TRL would compare some of its rollouts with the next group's.
    """
    first: list[Sample] = []
    further: list[tuple[int, Sample]] = []
    for group in groups:
        places = [*zip(group.group.members, group.rows, strict=True)]
        if len(places) > size:
            raise TrainerError(
                f"Group {group.group.ordinal} has {len(places)} rollouts, but TRL needs {size} "
                "(trainer.group_size): choose a generate.selector that keeps this size."
            )
        for member, rows in places:
            reward = float(member.reward)
            samples = [sample_of(row, reward) for row in rows] or [empty_sample(member.rollout_id, reward)]
            further += [(len(first), sample) for sample in samples[1:]]
            first.append(samples[0])
        first += [empty_sample("", None)] * (size - len(places))
    return SampledBatch(tuple(first), tuple(further))


def fields_of(samples: Sequence[Sample]) -> dict[str, list[Any]]:
    """The return value of a TRL `rollout_func`, with each sample's `reward`; see `recorded_reward`."""
    names = ("prompt_ids", "completion_ids", "logprobs", "env_mask", "reward")
    return {name: [getattr(sample, name) for sample in samples] for name in names}


def one_advantage(row: Row, value: float | FloatArray) -> float:
    """The advantage that all trained tokens of a row share. Raises `TrainerError` if they have several,
    because a sample has one.
    """
    values = np.unique(np.broadcast_to(np.asarray(value, np.float64), row.ids.shape)[row.mask != 0])
    if len(values) > 1:
        raise TrainerError(
            f"The tokens of rollout {row.rollout_id} have {len(values)} different advantages, and a sample "
            "of TRL has one: choose an estimator with one per rollout (trainer.advantage), or algorithm = "
            "'grpo'."
        )
    return float(values[0])


def recorded_reward(*, reward: list[float | None], **_: Any) -> list[float | None]:
    """TRL's reward function: returns the recorded rewards."""
    return reward
