"""A budget of rollouts per block of groups: what is left of it at each place."""

from hypothesis import given
from hypothesis import strategies as st

from harnessgym.scheduling.selectors.sizes import BudgetBlock, blocks
from tests.harnessgym.scheduling.selectors.visiting import pool, visit


def test_nothing_wanted_is_no_block():
    assert list(blocks(pool(), 3, 0, [])) == []


def test_a_whole_block_has_the_whole_budget():
    assert list(blocks(pool(groups_per_step=4, group_size=8), 0, 4, [])) == [BudgetBlock(0, 4, 4, 32)]


def test_what_groups_of_the_block_took_is_not_left():
    visits = [visit("t0", 0, 8), visit("t1", 0, 12), visit("t2", 0, 3)]
    (block,) = blocks(pool(groups_per_step=4, group_size=8), 3, 1, visits)
    assert block == BudgetBlock(3, 1, 1, 32 - 8 - 12 - 3)


def test_a_wish_across_a_border_is_two_blocks_and_the_second_is_untouched():
    visits = [visit("t0", 0, 20)]
    assert list(blocks(pool(groups_per_step=2, group_size=8), 1, 3, visits)) == [
        BudgetBlock(1, 1, 1, -4),
        BudgetBlock(2, 2, 2, 16),
    ]


def test_requeued_groups_take_nothing_from_the_budget():
    visits = [visit("t0", 0, 8), visit("t0", 0, 8, fresh=False), visit("t1", 0, 4)]
    (block,) = blocks(pool(groups_per_step=4, group_size=8), 2, 2, visits)
    assert block.rollouts == 32 - 8 - 4


@given(size=st.integers(1, 6), number=st.integers(0, 20), wanted=st.integers(0, 20))
def test_blocks_follow_each_other_and_hold_what_is_wanted(size, number, wanted):
    found = list(blocks(pool(groups_per_step=size), number, wanted, []))
    assert sum(block.wanted for block in found) == wanted
    for block in found:
        assert block.number == number
        assert 0 < block.wanted <= block.groups <= size
        assert (block.number + block.groups) % size == 0
        number += block.wanted
