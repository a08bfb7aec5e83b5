"""The control: the same rewards, given for something else."""

from collections import Counter
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trainers.advantages.groups import random_group
from tests.trainers.advantages.test_estimator import loaded
from trainers.batch import shuffled


def batch(seed):
    groups = []
    for number in range(3):
        group = [
            replace(item, agent_rewards={item.rollout_id: {"expert": float(at)}})
            for at, item in enumerate(random_group([seed, number]))
        ]
        groups.append(loaded(group, str(number)))
    return groups


def given_for(groups):
    """By kind of unit, what was given, in order."""
    members = [(item.reward, tuple(item.rewards.items())) for group in groups for item in group.scored]
    agents = [
        tuple(own.items()) for group in groups for item in group.scored for own in item.agent_rewards.values()
    ]
    turns = [
        (turn.call_id, tuple(turn.rewards.items()))
        for group in groups for rows in group.rows for row in rows for turn in row.turns
    ]  # fmt: skip
    return members, agents, turns


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000))
def test_a_batch_keeps_its_rewards_of_each_kind_and_loses_what_they_say(seed):
    groups = batch(seed)
    before, after = given_for(groups), given_for(shuffled(groups, np.random.default_rng(seed)))
    for one, other in zip(before[:2], after[:2], strict=True):
        assert Counter(one) == Counter(other)
    assert Counter(dict(before[2]).values()) == Counter(dict(after[2]).values())
    assert [call for call, _ in before[2]] == [call for call, _ in after[2]]
    assert len(dict(after[2])) == len(set(after[2]))  # a call has the same in all of its branches


def test_something_is_moved():
    groups = batch(0)
    assert given_for(groups) != given_for(shuffled(groups, np.random.default_rng(0)))


def test_tokens_stay_what_they_are():
    groups = batch(1)
    for one, other in zip(groups, shuffled(groups, np.random.default_rng(0)), strict=True):
        for rows, same in zip(one.rows, other.rows, strict=True):
            assert all(
                np.array_equal(row.ids, moved.ids) and np.array_equal(row.mask, moved.mask)
                for row, moved in zip(rows, same, strict=True)
            )
