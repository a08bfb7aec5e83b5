"""Rows as TRL's samples: nothing is lost, added or tokenised again."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harnessgym.errors import TrainerError
from harnessgym.traces.trajectories import Row
from trainers.trl_bridge.samples import (
    empty_sample,
    fields_of,
    one_advantage,
    recorded_reward,
    sample_of,
    samples_of,
)


@st.composite
def rows(draw, rollout_id="r"):
    """A row that trains a token and begins with one that it does not train."""
    mask = np.array([0, *draw(st.lists(st.integers(0, 1), max_size=12)), 1], np.int32)
    ids = np.array(
        draw(st.lists(st.integers(0, 2**31 - 1), min_size=len(mask), max_size=len(mask))), np.int32
    )
    floats = st.floats(-50, 0, width=32)
    logprobs = np.array(draw(st.lists(floats, min_size=len(mask), max_size=len(mask))), np.float32) * mask
    return Row(rollout_id, "g", ids, mask, logprobs, np.where(mask, 0, -1).astype(np.int32))


@st.composite
def groups(draw):
    """A group of up to four rollouts of none to three rows."""
    members, found = [], []
    for index in range(draw(st.integers(1, 4))):
        members.append(SimpleNamespace(rollout_id=f"r{index}", reward=draw(st.floats(-1, 1))))
        found.append(tuple(draw(st.lists(rows(f"r{index}"), max_size=3))))
    return SimpleNamespace(group=SimpleNamespace(members=tuple(members)), rows=tuple(found))


@given(rows())
def test_a_sample_is_its_row(row):
    sample = sample_of(row, 0.5)
    start = len(sample.prompt_ids)
    assert sample.prompt_ids + sample.completion_ids == row.ids.tolist()
    assert [0] * start + sample.env_mask == row.mask.tolist()
    assert [0.0] * start + sample.logprobs == row.logprobs.tolist()
    assert start
    assert sample.env_mask[0] == 1


@given(st.lists(groups(), min_size=1, max_size=3), st.integers(4, 6))
def test_every_row_is_in_one_sample_and_every_place_is_filled(found, size):
    batch = samples_of(found, size)
    assert len(batch.first) == size * len(found)
    members = [member for group in found for member in group.group.members]
    assert [item.rollout_id for item in batch.first if item.rollout_id] == [
        member.rollout_id for member in members
    ]
    assert [item.reward for item in batch.first if item.reward is not None] == [
        member.reward for member in members
    ]
    assert all(batch.first[place].rollout_id == sample.rollout_id for place, sample in batch.further)
    trained = sum(sum(sample.env_mask) for sample in (*batch.first, *(item for _, item in batch.further)))
    assert trained == sum(int(row.mask.sum()) for group in found for member in group.rows for row in member)


def test_an_empty_place_counts_in_no_mean_and_has_what_trl_needs_of_a_sample():
    fields = fields_of([empty_sample("", None)])
    assert fields == {
        "prompt_ids": [[0]],
        "completion_ids": [[0]],
        "logprobs": [[0.0]],
        "env_mask": [[0]],
        "reward": [None],
    }
    assert recorded_reward(reward=[None, 1.0], prompts=["", ""], trainer_state=None) == [None, 1.0]


def test_a_group_that_is_larger_than_the_others_is_refused():
    """Its last rollouts would be compared with the next group's."""
    members = tuple(SimpleNamespace(rollout_id=f"r{index}", reward=1.0) for index in range(3))
    group = SimpleNamespace(group=SimpleNamespace(members=members, ordinal=4), rows=((), (), ()))
    assert len(samples_of([group], 3).first) == 3
    with pytest.raises(TrainerError, match=r"Group 4 has 3 rollouts, but TRL needs 2 .*generate\.selector"):
        samples_of([group], 2)


@given(rows(), st.floats(-3, 3))
def test_a_sample_has_one_advantage(row, value):
    assert one_advantage(row, value) == value
    tokens = np.where(row.mask != 0, value, 7.0)  # what is not trained has no say
    assert one_advantage(row, tokens) == value
    if row.mask.sum() > 1:
        tokens[-1] += 1.0
        with pytest.raises(TrainerError, match="2 different advantages"):
            one_advantage(row, tokens)
