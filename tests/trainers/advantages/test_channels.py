"""A channel that is written wrongly ends the run once its first batches are there."""

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import select

from harnessgym.errors import ConfigError, TrainerError
from harnessgym.store import TraceStore, rewards, runs
from harnessgym.store.rewards import RewardRow
from harnessgym.store.tables import calls
from tests.trainers.recorded_run import learner_of, make_run, record_groups, save_model
from trainers.advantages.channels import due


def stepped(root, *, given_under="", steps=1, **trainer):
    """A run after one step; every call of it, and every rollout, has a reward under `given_under`."""
    folder = make_run(root / "run", save_model(root / "model"), steps=steps, **trainer)
    record_groups(folder, range(2), rewards={0: [0.0, 1.0, 1.0], 1: [0.0, 1.0, 0.0]})
    with TraceStore.open(folder.store_url()) as store:
        for call, rollout in store.read(
            lambda conn: conn.execute(select(calls.c.id, calls.c.rollout_id)).all()
        ):
            for unit, target in (("turn", call), ("rollout", rollout)):
                row = RewardRow(rollout, unit, target, given_under or "other", 1.0, "test")
                store.write(lambda conn, row=row: rewards.add(conn, row))
        learner = learner_of(folder, store)
        try:
            learner.train_step(list(learner.arriving()))
            learner.settle()
        finally:
            learner.writer.close()
        return store.read(lambda conn: rewards.channels(conn, runs.only(conn).id, "rollout"))


OF_ROLLOUTS = [
    {"advantage": "gdpo", "advantage_settings": {"weights": {"reward": 1, "process.short": 1}}},
    {"advantage": "m_grpo", "advantage_settings": {"main": {"process.short": 1}, "sub": {}}},
]
OF_CALLS = [
    {"advantage": "hgpo", "advantage_settings": {"channel": "process.short"}},
    {"advantage": "ui_s1", "advantage_settings": {"channel": "process.short"}},
    {"algorithm": "ppo", "ppo": {"channel": "process.short"}},
]


@pytest.mark.parametrize("trainer", OF_ROLLOUTS, ids=lambda trainer: trainer["advantage"])
def test_a_rollout_without_a_reward_under_a_channel_that_is_named_stops_the_trainer(tmp_path, trainer):
    assert stepped(tmp_path / "right", given_under="process.short", **trainer) == ("process.short", "reward")
    missing = (
        r"Rollout \w+ has no reward under the channel 'process.short', which .* names; it has other, reward"
    )
    with pytest.raises(TrainerError, match=missing):
        stepped(tmp_path / "wrong", steps=4, **trainer)


@pytest.mark.parametrize("trainer", OF_CALLS, ids=lambda trainer: trainer.get("advantage", "ppo"))
def test_a_channel_of_calls_that_is_named_must_occur(tmp_path, trainer):
    assert stepped(tmp_path / "right", given_under="process.short", **trainer) == ("process.short", "reward")
    with pytest.raises(
        ConfigError, match=r"names the channel 'process.short', and no call .* that occur: other"
    ):
        stepped(tmp_path / "wrong", **trainer)
    stepped(tmp_path / "later", steps=4, **trainer)  # one batch tells little


def test_rewards_of_sub_agents_may_be_zeros_and_that_is_told(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        stepped(tmp_path, advantage="m_grpo")
    said = [record.getMessage() for record in caplog.records if "counts as 0" in record.getMessage()]
    assert [line.split("'")[1] for line in said] == ["format", "expert"]
    assert all("Channels of agents that occur: none" in line for line in said)


@given(steps=st.integers(1, 50))
def test_channels_are_looked_up_once_in_a_run(steps):
    assert [step for step in range(1, steps + 1) if due(step, steps)] == [min(3, steps)]
