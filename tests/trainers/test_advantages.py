"""Group-relative advantages against plain loops."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harnessgym.registry import load
from trainers.advantages.group_relative import dr_grpo, grpo, mc_grpo, rloo

REWARDS = st.lists(st.floats(-10, 10, width=32), min_size=1, max_size=16)


@given(REWARDS)
def test_grpo_is_the_standard_score_of_the_group(rewards: list[float]) -> None:
    mean = sum(rewards) / len(rewards)
    std = math.sqrt(sum((reward - mean) ** 2 for reward in rewards) / len(rewards))
    expected = [(reward - mean) / (std + 1e-4) for reward in rewards]
    np.testing.assert_allclose(grpo(rewards), expected, rtol=1e-6, atol=1e-9)


@given(REWARDS)
def test_dr_grpo_centres_and_keeps_the_spread(rewards: list[float]) -> None:
    advantages = dr_grpo(rewards)
    assert abs(advantages.sum()) < 1e-9 * max(1.0, float(np.abs(rewards).sum()))
    np.testing.assert_allclose(np.diff(advantages), np.diff(np.asarray(rewards)), atol=1e-9)


@pytest.mark.parametrize("reward", [0.0, 1.0, 0.1, -3.3])
@pytest.mark.parametrize("size", [1, 2, 7, 8])
def test_equal_rewards_give_exact_zeros(reward: float, size: int) -> None:
    assert not grpo([reward] * size).any()
    assert not dr_grpo([reward] * size).any()


def test_binary_group_by_hand() -> None:
    np.testing.assert_allclose(grpo([1, 0, 0, 0], eps=0.0), [math.sqrt(3), *[-1 / math.sqrt(3)] * 3])


@pytest.mark.parametrize("rewards", [[], [[1.0, 0.0]], 1.0])
def test_anything_but_one_number_per_rollout_is_refused(rewards: object) -> None:
    with pytest.raises(ValueError, match="one number per rollout"):
        grpo(rewards)  # type: ignore[arg-type]


@given(REWARDS)
def test_rloo_compares_with_the_others(rewards: list[float]) -> None:
    for at, value in enumerate(rloo(rewards)):
        others = rewards[:at] + rewards[at + 1 :]
        baseline = sum(others) / len(others) if others else rewards[at]
        assert value == pytest.approx(rewards[at] - baseline, abs=1e-6)


def test_the_pivot_is_dropped_and_the_others_are_scaled_up() -> None:
    # median 1, deviations 1 0 1 2 8: their median is 1; five rollouts, of which four differ from the median
    found = mc_grpo([0, 1, 2, 3, 9])
    np.testing.assert_allclose(found, np.array([-2, -1, np.nan, 1, 7]) / 1.001 * 5 / 4)
    np.testing.assert_allclose(
        mc_grpo([0, 1, 1]), [-1 / 1e-3 * 3, np.nan, 0]
    )  # the second 1 is masked, not dropped
    assert not mc_grpo([2.0, 2.0, 2.0]).any()


@given(REWARDS)
def test_half_of_a_group_lies_on_either_side_of_the_median_whatever_one_outlier_does(
    rewards: list[float],
) -> None:
    found = np.nan_to_num(mc_grpo(rewards))
    size = len(rewards)
    assert (found > 0).sum() <= size // 2
    assert (found < 0).sum() <= size // 2
    top = [*rewards, max(rewards) + 1]
    assert (
        np.sign(np.nan_to_num(mc_grpo(top)))
        == np.sign(np.nan_to_num(mc_grpo([*rewards, max(rewards) + 1e6])))
    ).all()


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo"])
def test_functions_of_rewards_keep_the_order(name: str) -> None:
    advantages = load("advantage", name)([0.0, 1.0, 0.5])
    assert advantages[0] < advantages[2] < advantages[1]
