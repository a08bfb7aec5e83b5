"""DART's group sizes by success rate, and over which visits a rate is taken."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harnessgym.scheduling.selection import make_selector
from harnessgym.scheduling.selectors.dart import count
from harnessgym.scheduling.selectors.uniform import in_turn
from tests.harnessgym.scheduling.selectors.visiting import pool, visit


@pytest.mark.parametrize(("rate", "size"), [(0.0, 8), (0.59, 8), (0.6, 8), (0.75, 5), (0.9, 3), (1.0, 2)])
def test_sizes_for_eight_rollouts_are_those_of_its_code(rate, size):
    assert count(rate, 8) == size


@given(
    usual=st.integers(2, 64),
    threshold=st.floats(0.05, 0.95),
    rates=st.tuples(st.floats(0, 1), st.floats(0, 1)),
)
def test_a_higher_rate_never_gets_a_larger_group(usual, threshold, rates):
    low, high = sorted(rates)
    assert 2 <= count(high, usual, threshold) <= count(low, usual, threshold) <= usual
    assert count(1.0, usual, threshold) == 2


def chosen(visits, **settings):
    """The size of the next group of the first task in turn."""
    own = pool()
    (pick,) = make_selector("dart", settings, own).choose(0, 1, visits)
    assert pick.task == in_turn(own, 0)
    return pick.rollouts


def test_a_task_that_was_not_visited_gets_the_usual_size():
    assert chosen([]) == 8


def test_only_the_last_visits_count():
    task = in_turn(pool(), 0)
    visits = [visit(task, 0)] * 5 + [visit(task, 8)] * 3
    assert chosen(visits) == 2
    assert chosen(visits, remembered=8) == 8
    assert chosen(visits, least=4) == 4


def test_open_groups_say_nothing_about_a_task():
    task = in_turn(pool(), 0)
    assert chosen([visit(task, 8), visit(task, 0, size=0)], remembered=1) == 2
