"""HGPO, UI-S1, IGPO, GAE: advantages of steps and tokens, by hand."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trainers.advantages.groups import random_group, rollout, values_by_call
from trainers.advantages.gae import gae, gae_of_rollout
from trainers.advantages.hgpo import Hgpo, HgpoSettings
from trainers.advantages.igpo import Igpo, IgpoSettings
from trainers.advantages.steps import discounted, standardised
from trainers.advantages.ui_s1 import UiS1, UiS1Settings


def calls(group, found):
    out = {}
    for item, values in zip(group, found, strict=True):
        out |= values_by_call(item, values)
    return out


def near(value):
    return pytest.approx(value, rel=1e-4, abs=1e-6)


def test_discounted_returns():
    assert discounted(np.array([1.0, 0.0, 4.0]), 0.5).tolist() == [2.0, 2.0, 4.0]


def test_a_step_is_compared_with_those_in_the_same_state_only():
    group = [
        rollout("a", [[("1", "start"), ("2", "left")]], 1.0),
        rollout("b", [[("1", "start"), ("2", "right")]], 0.0),
    ]
    found = calls(group, Hgpo(HgpoSettings(gamma=1.0, history=0))(group))
    assert found == {
        "a1": near(1.0),
        "b1": near(-1.0),
        "a2": 0.0,
        "b2": 0.0,
    }  # nothing is known of left against right


def test_longer_histories_in_common_count_more_and_only_where_they_say_something():
    group = [
        rollout("a", [[("1", "x"), ("2", "s")]], 1.0),
        rollout("b", [[("1", "x"), ("2", "s")]], 0.0),
        rollout("c", [[("1", "y"), ("2", "s")]], 0.0),
    ]
    found = calls(group, Hgpo(HgpoSettings(gamma=1.0, history=1))(group))
    std = np.sqrt(2) / 3
    assert found["a2"] == near((2 * (2 / 3) / std + 3 * 1) / 5)  # L = 2 among three, L = 3 among two
    assert found["b2"] == near((2 * (-1 / 3) / std - 3 * 1) / 5)
    assert found["c2"] == near(-1 / 3 / std)  # alone with its history
    assert found["c1"] == 0.0


def test_a_step_of_two_branches_counts_once_with_the_mean_of_their_returns():
    forked = rollout("a", [[("1", "s"), ("2", "x", 1.0)], [("1", "s"), ("3", "y", 3.0)]])
    others = [rollout("b", [[("1", "s", 2.0)]]), rollout("c", [[("1", "s", 5.0)]])]
    group = [forked, *others]
    found = calls(group, Hgpo(HgpoSettings(gamma=1.0))(group))
    expected = standardised(np.array([2.0, 2.0, 5.0]), 1e-6)
    assert [found[name] for name in ("a1", "b1", "c1")] == [near(value) for value in expected]
    again = calls(group, UiS1(UiS1Settings(gamma=1.0))(group))
    assert [again[name] for name in ("a1", "b1", "c1")] == [near(value) for value in expected]


@given(st.integers(0, 5000))
def test_the_order_of_rollouts_and_branches_changes_nothing(seed):
    group = random_group(seed)
    turned = [*reversed(group)]
    for own in (Hgpo(HgpoSettings()), UiS1(UiS1Settings())):
        one, other = calls(group, own(group)), calls(turned, own(turned))
        assert one == {call: pytest.approx(value, abs=1e-5) for call, value in other.items()}


def test_an_episode_and_its_steps_are_added():
    group = [
        rollout("a", [[("1", "s", 1.0), ("2", "s", 1.0)]], 1.0),
        rollout("b", [[("1", "s", 0.0)]], 0.0),
    ]
    found = calls(group, UiS1(UiS1Settings(step_weight=0.5))(group))
    assert found == {"a1": near(1.5), "b1": near(-1.5), "a2": near(1.0)}  # only a has a second step


def test_a_turn_has_what_it_added_and_what_followed():
    group = [
        rollout("a", [[("1", "s"), ("2", "s"), ("3", "s")]], 1.0),
        rollout("b", [[("1", "s"), ("2", "s")]], 0.0),
    ]
    gains = [[np.array([0.0, 0.6])], [np.array([-0.2])]]
    found = calls(group, Igpo(IgpoSettings(gamma=0.5), lambda _: gains)(group))
    a, b, c, one, none = standardised(np.array([0.0, 0.6, -0.2, 1.0, 0.0]), 1e-6)
    assert found == {
        "a1": near(a + 0.5 * b + 0.25 * one), "a2": near(b + 0.5 * one), "a3": near(one),
        "b1": near(c + 0.5 * none), "b2": near(none),
    }  # fmt: skip
    apart = calls(group, Igpo(IgpoSettings(normalise="separate"), lambda _: gains)(group))
    assert apart["a3"] == near(1.0)
    assert apart["b2"] == near(-1.0)


def test_a_shared_turns_gain_is_the_mean_of_its_branches():
    group = [
        rollout("a", [[("1", "s"), ("2", "x")], [("1", "s"), ("3", "y")]], 1.0),
        rollout("b", [[("1", "s")]], 0.0),
    ]
    gains = [[np.array([0.2]), np.array([0.4])], [np.zeros(0)]]
    found = calls(group, Igpo(IgpoSettings(), lambda _: gains)(group))
    gain, one, none = standardised(np.array([0.3, 1.0, 0.0]), 1e-6)
    assert found == {"a1": near(gain + one), "a2": near(one), "a3": near(one), "b1": near(none)}


def test_gae_at_its_ends():
    rewards, values = np.array([0.0, 0.0, 2.0]), np.array([0.5, 1.0, 1.5])
    assert gae(rewards, values, 1.0, 1.0).tolist() == [1.5, 1.0, 0.5]  # Monte Carlo: return minus value
    assert gae(rewards, values, 1.0, 0.0).tolist() == [0.5, 0.5, 0.5]  # one step ahead
    np.testing.assert_allclose(gae(rewards, np.zeros(3), 0.5, 1.0), [0.5, 1.0, 2.0])


def test_gae_of_a_rollout_by_hand():
    """Two calls of three and one tokens; the first call has a reward of its own."""
    item = rollout("a", [[("1", "s", 0.5, 3), ("2", "x", 0.0, 1)]], reward=2.0)
    values = np.zeros(len(item.rows[0].ids), np.float32)
    at = np.flatnonzero(item.rows[0].mask)
    values[at] = [1.0, 0.5, 0.25, 1.5]
    (found,) = gae_of_rollout(item, [values], gamma=0.5, lam=0.5)
    last = 2.0 - 1.5
    third = 0.5 + 0.5 * 1.5 - 0.25 + 0.25 * last
    second = 0.5 * 0.25 - 0.5 + 0.25 * third
    first = 0.5 * 0.5 - 1.0 + 0.25 * second
    assert found[at] == pytest.approx([first, second, third, last])
    assert not found[item.rows[0].mask == 0].any()


def test_an_agents_calls_are_one_sequence_whatever_row_they_are_in_and_each_agent_gets_the_reward():
    """The main agent forks at its second call; a sub-agent has a row of its own."""
    item = rollout(
        "a",
        [[("1", "s"), ("2", "x")], [("1", "s"), ("4", "y")], [("3", "t")]],
        reward=1.0,
        parents=("", "", "amain"),
    )
    values = [
        np.random.default_rng(number).normal(size=len(row.ids)).astype(np.float32)
        for number, row in enumerate(item.rows)
    ]
    found = gae_of_rollout(item, values, gamma=0.9, lam=0.8)
    main, forked, sub = (row.mask != 0 for row in item.rows)
    in_order = np.concatenate([values[0][main], values[1][forked]]).astype(np.float64)  # 1, 2, then 4
    expected = gae(np.array([*[0.0] * 8, 1.0]), in_order, 0.9, 0.8)
    np.testing.assert_allclose(np.concatenate([found[0][main], found[1][forked]]), expected, rtol=1e-5)
    alone = gae(np.array([0.0, 0.0, 1.0]), values[2][sub].astype(np.float64), 0.9, 0.8)
    np.testing.assert_allclose(found[2][sub], alone, rtol=1e-5)


@given(st.integers(0, 5000))
def test_what_lies_ahead_of_an_agents_token_less_its_value(seed):
    """Lambda 1: return minus value, with every reward that the agent's later calls get."""
    item = random_group(seed)[0]
    random = np.random.default_rng(seed)
    values = [random.normal(size=len(row.ids)).astype(np.float32) for row in item.rows]
    found = gae_of_rollout(item, values, gamma=1.0, lam=1.0)
    trained = {turn.call_id: turn for row in item.rows for turn in row.turns if row.mask[turn.start]}
    for row, own, value in zip(item.rows, found, values, strict=True):
        assert not own[row.mask == 0].any()
        for turn in row.turns:
            if row.mask[turn.start]:
                ahead = sum(
                    each.rewards.get("reward", 0.0) for call, each in trained.items() if call >= turn.call_id
                )
                expected = item.reward + ahead - value[turn.start : turn.end]
                np.testing.assert_allclose(own[turn.start : turn.end], expected, atol=1e-4)


@given(st.integers(0, 5000))
def test_another_order_of_rows_gives_the_same_gae(seed):
    item = random_group(seed)[0]
    values = [
        np.random.default_rng([seed, at]).normal(size=len(row.ids)).astype(np.float32)
        for at, row in enumerate(item.rows)
    ]
    turned = replace(item, rows=item.rows[::-1])
    for one, other in zip(
        gae_of_rollout(item, values), gae_of_rollout(turned, values[::-1])[::-1], strict=True
    ):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    "estimator", [Hgpo(HgpoSettings(gamma=0.95, history=0)), UiS1(UiS1Settings(gamma=0.95))]
)
def test_branches_that_come_out_alike_say_exactly_what_one_says(estimator):
    """The mean of three returns of 0.95 is not 0.95 in floats."""
    shared = [[("m", "start", 0.0), (f"{number}", "then", 1.0)] for number in range(3)]
    group = [rollout("a", shared, 1.0), rollout("b", [[("m", "start", 0.0), ("0", "then", 1.0)]], 1.0)]
    assert not any(calls(group, estimator(group)).values())
