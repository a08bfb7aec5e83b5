"""Every task once in each epoch, however groups are asked for."""

from hypothesis import given
from hypothesis import strategies as st

from harnessgym.scheduling.selection import make_selector
from harnessgym.scheduling.selectors.uniform import in_turn
from tests.harnessgym.scheduling.selectors.visiting import pool


@given(tasks=st.integers(1, 12), epoch=st.integers(0, 5), seed=st.integers(0, 9))
def test_an_epoch_has_every_task_once(tasks, epoch, seed):
    own = pool(tasks, seed=seed)
    order = [in_turn(own, epoch * tasks + place) for place in range(tasks)]
    assert sorted(order) == sorted(own.tasks)


@given(parts=st.lists(st.integers(0, 5), max_size=6))
def test_groups_asked_for_one_by_one_are_those_asked_for_at_once(parts):
    selector = make_selector("uniform", {}, pool(5))
    picks, number = [], 0
    for wanted in parts:
        picks += selector.choose(number, wanted, [])
        number += wanted
    assert picks == selector.choose(0, number, [])


def test_epochs_and_seeds_have_orders_of_their_own():
    own, other = pool(30), pool(30, seed=1)
    orders = [tuple(in_turn(own, 30 * epoch + place) for place in range(30)) for epoch in range(3)]
    assert len({*orders, tuple(in_turn(other, place) for place in range(30))}) == 4
