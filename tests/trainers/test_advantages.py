"""Group-relative advantages against plain loops."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harnessgym.registry import load, names
from trainers.advantages.group_relative import dr_grpo, grpo

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


@pytest.mark.parametrize("name", names("advantage"))
def test_every_registered_name_loads_and_keeps_the_order(name: str) -> None:
    advantages = load("advantage", name)([0.0, 1.0, 0.5])
    assert advantages[0] < advantages[2] < advantages[1]
