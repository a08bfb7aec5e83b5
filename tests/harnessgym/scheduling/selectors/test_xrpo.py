"""XRPO spends a block's budget exactly, and more of it where rewards vary."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harnessgym.scheduling.selection import make_selector
from harnessgym.scheduling.selectors.uniform import in_turn
from harnessgym.scheduling.selectors.xrpo import half_width
from tests.harnessgym.scheduling.selectors.visiting import pool, visit


@given(s=st.floats(0.01, 1), n=st.integers(2, 60))
def test_an_interval_shrinks_with_every_reward_and_by_less_each_time(s, n):
    first, second, third = (half_width(s, n + more, 0.05) for more in range(3))
    assert first > second > third
    assert first - second > second - third


def test_an_interval_is_that_of_the_t_distribution():
    assert half_width(1.0, 2, 0.05) == pytest.approx(12.7062 / 2**0.5, rel=1e-4)
    assert half_width(0.0, 5, 0.05) == 0


@pytest.mark.parametrize(("group_size", "per_step"), [(8, 4), (2, 3), (5, 1)])
def test_a_block_spends_its_budget(group_size, per_step):
    own = pool(8, group_size, per_step)
    picks = make_selector("xrpo", {}, own).choose(0, per_step, [])
    assert sum(pick.rollouts for pick in picks) == group_size * per_step
    assert [pick.task for pick in picks] == [in_turn(own, place) for place in range(per_step)]
    assert all(max(2, group_size // 2) <= pick.rollouts <= 3 * group_size for pick in picks)


def test_a_task_of_mixed_rewards_gets_more_than_a_known_one():
    own = pool(2, 8, 2)
    mixed, known = in_turn(own, 0), in_turn(own, 1)
    visits = [visit(mixed, 4), visit(known, 8)]
    sizes = {pick.task: pick.rollouts for pick in make_selector("xrpo", {}, own).choose(2, 2, visits)}
    assert sizes[mixed] > sizes[known] >= 4
    assert sum(sizes.values()) == 16


def test_a_group_is_not_larger_than_the_most():
    own = pool(2, 8, 2)
    visits = [visit(in_turn(own, 0), 4), visit(in_turn(own, 1), 8)]
    picks = make_selector("xrpo", {"most": 9, "base": 2}, own).choose(2, 2, visits)
    assert max(pick.rollouts for pick in picks) <= 9
