"""DARS: further rollouts by accuracy, and the accuracy that a task's next group is sized by."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harnessgym.scheduling.selection import make_selector
from harnessgym.scheduling.selectors.dars import further
from harnessgym.scheduling.selectors.uniform import in_turn
from tests.harnessgym.scheduling.selectors.visiting import pool, visit

ACCURACY = st.integers(0, 16).map(lambda hits: hits / 16)


@pytest.mark.parametrize("accuracy", [0.5, 0.75, 1.0])
def test_easy_tasks_get_no_more(accuracy):
    assert further(accuracy, 8, "equal", 64) == further(accuracy, 8, "hardness", 64) == 0


@pytest.mark.parametrize(("accuracy", "more"), [(0.25, 3), (0.125, 11), (0.0, 56)])
def test_hard_tasks_get_the_variance_of_an_even_one(accuracy, more):
    # 8 rollouts with S = 2a(1-a) each: dN = (8 * 0.5 - 8 S) / S, rounded up; 0 successes count as S = 0.5/8.
    assert further(accuracy, 8, "equal", 64) == more


@given(low=ACCURACY, high=ACCURACY, rollouts=st.integers(2, 32))
def test_a_harder_task_never_gets_fewer(low, high, rollouts):
    low, high = sorted((low or 1 / 16, high or 1 / 16))
    assert further(high, rollouts, "equal", 1000) <= further(low, rollouts, "equal", 1000)
    assert further(low, rollouts, "equal", 1000) <= further(low, rollouts, "hardness", 1000)


@given(accuracy=ACCURACY, rollouts=st.integers(2, 32), room=st.integers(0, 40))
def test_the_sum_keeps_to_the_most(accuracy, rollouts, room):
    assert 0 <= further(accuracy, rollouts, "hardness", rollouts + room) <= room


def test_the_last_visit_decides():
    own = pool()
    task = in_turn(own, 0)
    selector = make_selector("dars", {}, own)
    assert [pick.rollouts for pick in selector.choose(0, 1, [])] == [8]
    assert [pick.rollouts for pick in selector.choose(0, 1, [visit(task, 8), visit(task, 2)])] == [11]
    assert [pick.rollouts for pick in selector.choose(0, 1, [visit(task, 2), visit(task, 8)])] == [8]


@pytest.mark.parametrize(("schedule", "most"), [("equal", 32), ("hardness", 64)])
def test_a_task_without_a_success_gets_the_most(schedule, most):
    own = pool()
    visits = [visit(in_turn(own, 0), 0)]
    (pick,) = make_selector("dars", {"schedule": schedule}, own).choose(0, 1, visits)
    assert pick.rollouts == most
