"""VCPO's baseline: the one of least variance, and what it leaves of a rollout that is alone."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harnessgym.errors import TrainerError
from tests.trainers.test_update import make_policy, make_rows, step_of
from trainers.optimizer import make_optimizer
from trainers.update import policy_update
from trainers.update_settings import UpdateSettings


@settings(max_examples=5, deadline=None)
@given(
    st.integers(0, 999),
    st.lists(st.integers(-3, 3), min_size=4, max_size=4).filter(lambda rewards: len(set(rewards)) > 1),
)
def test_no_other_baseline_gives_the_weighted_gradient_a_smaller_second_moment(
    seed: int, rewards: list[int]
) -> None:
    """Sum of |G_i|^2 (R_i - b)^2, with G_i from a step on that rollout alone."""
    plain = UpdateSettings(loss="reinforce", proximal="current", max_grad_norm=1e9)
    options = plain.model_copy(update={"baseline": "minimum_variance"})
    rows = make_rows(seed, count=4)
    _, metrics = step_of(rows, list(map(float, rewards)), options)
    grads = [step_of([row], [1.0], plain)[0].astype(np.float64) * int(row.mask.sum()) for row in rows]

    def moment(baseline: float) -> float:
        terms = zip(grads, rewards, strict=True)
        return math.fsum(float((grad**2).sum()) * (reward - baseline) ** 2 for grad, reward in terms)

    spread = max(rewards) - min(rewards)
    for share in (1e-2, 1e-1, 1.0):
        assert moment(metrics.baseline) < moment(metrics.baseline + share * spread)
        assert moment(metrics.baseline) < moment(metrics.baseline - share * spread)


def test_a_rollout_alone_teaches_nothing_with_the_baseline_of_least_variance() -> None:
    options = UpdateSettings(loss="reinforce", proximal="current", baseline="minimum_variance")
    rows, rewards = make_rows(count=4), [1.0, 0.0, 0.0, 1.0]
    _, metrics = step_of(rows, rewards, options)
    assert 0 < metrics.baseline < 1
    alone, metrics = step_of(rows[:1], rewards[:1], options)
    assert metrics.baseline == 1.0
    assert metrics.grad_norm == 0.0
    assert not alone.any()
    policy, per_token = make_policy(), np.arange(len(rows[0].ids), dtype=np.float32)
    with pytest.raises(TrainerError, match="one reward per rollout"):
        policy_update(policy, make_optimizer(policy, options), rows[:1], [per_token], options)
