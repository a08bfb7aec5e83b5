"""VADE prefers tasks near a success rate of one third, and its draws depend on the seed and number only."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from harnessgym.scheduling.selectors.vade import Vade, VadeSettings, information_gain
from harnessgym.store.task_history import Visit
from tests.harnessgym.scheduling.selectors.visiting import pool, visit


@given(st.floats(0, 1))
def test_the_gain_is_greatest_at_one_third(p):
    gain, best = information_gain(np.array([p, 1 / 3]))
    assert 0 <= gain <= best


@pytest.mark.parametrize("decay", [0, -1, 1.5])
def test_decays_are_shares(decay):
    with pytest.raises(ValidationError):
        VadeSettings(visit_decay=decay)
    with pytest.raises(ValidationError):
        VadeSettings(version_decay=decay)


def test_a_task_of_mixed_results_is_chosen_over_known_ones():
    visits = [visit("t0", 300, 300), visit("t1", 100, 300), visit("t2", 0, 300)]
    (pick,) = Vade(VadeSettings(), pool(3)).choose(3, 1, visits)
    assert (pick.task, pick.rollouts) == ("t1", 8)


def test_a_task_with_an_open_group_waits():
    visits = [visit("t0", 300, 300), visit("t1", 100, 300), Visit("t1", 8, 0, open=True)]
    (pick,) = Vade(VadeSettings(), pool(2)).choose(3, 1, visits)
    assert pick.task == "t0"


def test_draws_differ_by_seed_and_by_number():
    def first(seed, number):
        return [pick.task for pick in Vade(VadeSettings(), pool(30, seed=seed)).choose(number, 5, [])]

    assert first(0, 0) == first(0, 0)
    assert len({tuple(first(seed, number)) for seed in (0, 1) for number in (0, 1)}) == 4
