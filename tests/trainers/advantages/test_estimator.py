"""The seam: settings, what is dropped, what is masked, and what the ledger is told."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harnessgym.config import validate
from harnessgym.errors import ConfigError, TrainerError
from harnessgym.registry import names
from harnessgym.run_config.run import RunConfig
from harnessgym.scheduling.staleness import VersionChain
from harnessgym.store.rollouts import GroupMember, GroupRow
from harnessgym.traces.trajectories import Credit
from tests.trainers.advantages.groups import random_group, rollout, values_by_call
from trainers.advantages.estimator import OnRewards, make_estimator
from trainers.advantages.igpo import Igpo, IgpoSettings
from trainers.algorithms import algorithms
from trainers.batch import LoadedGroup, gives_signal, make_batch, shuffled
from trainers.losses.normalisation import denominator

CHAIN = VersionChain(())


def config(**trainer):
    given = {
        "name": "t",
        "policy": {"path": "p"},
        "tasks": {"set": "lookup"},
        "harnesses": [{"name": "h"}],
        "trainer": trainer,
    }
    return validate(RunConfig, given, "test")


def estimator(name, **given):
    if name == "igpo":
        return Igpo(
            IgpoSettings(**given),
            lambda group: [[np.arange(len(r.turns) - 1.0) for r in i.rows] for i in group],
        )
    return make_estimator(config(advantage=name, advantage_settings=given))


def loaded(group, name="g"):
    members = tuple(
        GroupMember(item.rollout_id, slot, item.reward, "valid") for slot, item in enumerate(group)
    )
    credit = tuple(Credit(item.rewards, item.agent_rewards) for item in group)
    return LoadedGroup(
        GroupRow(name, 0, "task", 0, len(group), members), tuple(item.rows for item in group), (), credit
    )


def single(*rewards, **channels):
    """A group of one-call rollouts; `channels` has a value per rollout of each."""
    made = [{name: values[at] for name, values in channels.items()} for at in range(len(rewards))]
    return [rollout(f"r{at}", [[("c", "s")]], reward, rewards=made[at]) for at, reward in enumerate(rewards)]


@pytest.mark.parametrize("name", names("advantage"))
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_every_row_of_every_rollout_gets_finite_advantages_and_again_the_same(name, seed):
    group, own = random_group(seed), estimator(name)
    for item, rows, again in zip(group, own(group), own(group), strict=True):
        if rows is None:
            assert again is None
            continue
        for row, value, same in zip(item.rows, rows, again, strict=True):
            assert np.shape(value) in ((), row.ids.shape)
            assert np.isfinite(value).all()
            assert np.array_equal(value, same)


@pytest.mark.parametrize("name", names("advantage"))
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_every_trained_token_is_in_the_account_of_a_batch(name, seed):
    groups = [loaded(random_group([seed, number]), str(number)) for number in range(2)]
    batch = make_batch(groups, 0, CHAIN, estimator(name), None)
    for entry, rows in zip(batch.trained, (rows for group in groups for rows in group.rows), strict=True):
        told = [(item.call_id, at) for item in entry.advantages for at in range(item.start, item.end)]
        assert len(set(told)) == len(told) == entry.tokens == sum(int(row.mask.sum()) for row in rows)
    assert len(batch.rows) == len(batch.advantages)


@pytest.mark.parametrize("name", [name for name in names("advantage") if name != "igpo"])
def test_a_group_in_which_all_is_equal_teaches_nothing(name):
    group = loaded(single(0.1, 0.1, 0.1))
    assert not gives_signal(estimator(name), group)
    batch = make_batch([group], 0, CHAIN, estimator(name), None)
    assert (batch.rows, batch.advantages, batch.signal) == ((), (), 0.0)
    assert [entry.tokens for entry in batch.trained] == [3, 3, 3]


def test_equal_rewards_teach_where_the_estimator_sees_more():
    group = loaded(single(1.0, 1.0, right=[1.0, 0.0], short=[0.0, 1.0]))
    assert not group.signal
    assert gives_signal(estimator("gdpo", weights={"right": 1.0, "short": 0.5}), group)
    assert not gives_signal(
        estimator("gdpo", weights={"right": 1.0, "short": 1.0}), group
    )  # they cancel each other
    assert not gives_signal(estimator("grpo"), group)


@pytest.mark.parametrize(
    ("name", "given"),
    [("gdpo", {"weights": {"short": 1.0}}), ("m_grpo", {"main": {"short": 1.0}, "sub": {}})],
)
def test_what_was_tampered_with_has_zero_under_every_channel_and_a_valid_rollout_must_have_a_reward(
    name, given
):
    group = loaded(single(0.0, 1.0, short=[0.0, 2.0]))
    first, second = group.group.members
    cheated = replace(
        group,
        group=replace(group.group, members=(replace(first, verdict="tampered"), second)),
        credit=(Credit({"reward": 0.0}), group.credit[1]),
    )
    own = estimator(name, **given)
    assert (
        own(cheated.scored)
        == own(group.scored)
        == [[pytest.approx(-1.0, rel=1e-3)], [pytest.approx(1.0, rel=1e-3)]]
    )
    incomplete = replace(cheated, group=group.group)
    with pytest.raises(TrainerError, match="Rollout r0 has no reward under the channel 'short'"):
        own(incomplete.scored)


def test_shuffled_rewards_keep_each_verdict_with_its_rewards():
    group = loaded(single(0.0, 1.0, 1.0, 1.0, short=[0.0, 2.0, 3.0, 4.0]))
    first, *others = group.group.members
    members = (replace(first, verdict="tampered"), *others)
    credit = (Credit({"reward": 0.0}), *group.credit[1:])
    group = replace(group, group=replace(group.group, members=members), credit=credit)
    (permuted,) = shuffled([group], np.random.default_rng(0))
    pairs = [(item.tampered, "short" in item.rewards) for item in permuted.scored]
    assert sorted(pairs) == [(False, True)] * 3 + [(True, False)]
    assert pairs[0] != (True, False)


def test_what_is_dropped_leaves_the_denominators_and_what_is_masked_does_not():
    group = loaded(single(0.0, 1.0, 1.0, 2.0, 1.0))
    batch = make_batch([group], 0, CHAIN, estimator("mc_grpo"), None)
    assert [row.rollout_id for row in batch.rows] == ["r0", "r2", "r3", "r4"]  # r1 is the pivot
    assert batch.advantages[1] == batch.advantages[3] == 0.0
    assert denominator(batch.rows, "rollout") == 4
    assert [item.value for item in batch.trained[1].advantages] == [0.0]
    assert batch.signal == 1.0


def test_advantages_that_are_not_finite_stop_the_step():
    for value in (np.nan, np.inf):
        with pytest.raises(TrainerError, match="not finite"):
            make_batch(
                [loaded(single(0.0, 1.0))],
                0,
                CHAIN,
                OnRewards(lambda rewards, value=value: rewards + value),
                None,
            )


def test_the_batch_is_whitened_as_a_whole_and_groups_without_a_signal_stay_without():
    groups = [
        loaded(single(0.0, 1.0), "a"),
        loaded(single(1.0, 1.0), "b"),
        loaded(single(0.0, 1.0, 1.0, 1.0), "c"),
    ]
    batch = make_batch(groups, 0, CHAIN, estimator("gdpo"), None)
    given = np.array([-1, 1, 0, 0, -np.sqrt(3), *[1 / np.sqrt(3)] * 3])
    expected = given / given.std()
    np.testing.assert_allclose(batch.advantages, expected[[0, 1, 4, 5, 6, 7]], rtol=1e-3)
    assert batch.signal == 2 / 3


def test_settings_that_an_estimator_does_not_have_are_refused():
    with pytest.raises(ConfigError, match="Did you mean 'history'"):
        make_estimator(config(advantage="hgpo", advantage_settings={"histry": 3}))
    with pytest.raises(ConfigError, match="'grpo' has no settings"):
        make_estimator(config(advantage="grpo", advantage_settings={"eps": 3}))
    assert make_estimator(config(advantage="hgpo", advantage_settings={"history": 4})).settings.history == 4


def test_what_needs_the_whole_batch_is_refused_where_it_comes_in_parts():
    with pytest.raises(ConfigError, match="set stream = false"):
        make_estimator(config(advantage="gdpo", stream=True))
    with pytest.raises(ConfigError, match="only the run's trainer has"):
        make_estimator(config(advantage="igpo"))


def test_every_name_has_a_row_in_the_table():
    found = {item.name for item in algorithms() if item.kind == "advantage"}
    references = {"kl.use = reward", "distillation.tokens = sampled"}  # of `trainer.update`
    assert found == {*names("advantage"), "gae", *references}


@given(seed=st.integers(0, 10_000), name=st.sampled_from(["hgpo", "ui_s1", "igpo"]))
def test_a_call_has_one_advantage_wherever_its_branches_disagree(seed, name):
    group = random_group(seed)
    for item, values in zip(group, estimator(name)(group), strict=True):
        trained = {turn.call_id for row in item.rows for turn in row.turns}
        assert set(values_by_call(item, values)) == trained
        for row, own in zip(item.rows, values, strict=True):
            assert not own[row.mask == 0].any()
