"""A budget of rollouts that is spent exactly, though groups differ in size and are submitted as places get
free.

It is kept block by block: a block is as many chosen groups as a batch has, and gets that many times the usual
group size.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harnessgym.scheduling.selection import SelectionPool, Visit


@dataclass(frozen=True, slots=True)
class BudgetBlock:
    """What is left of one block."""

    number: int
    """Of its next group."""
    wanted: int
    """Groups of it that are chosen now, the first of those left."""
    groups: int
    """Groups that are left, those among them."""
    rollouts: int
    """Their rollouts; less than two each only if another configuration began the block."""


def blocks(pool: SelectionPool, number: int, wanted: int, visits: Sequence[Visit]) -> Iterator[BudgetBlock]:
    """The blocks that the `wanted` groups after `number` others belong to."""
    size = pool.groups_per_step
    spent = sum(
        visit.size for visit in [item for item in visits if item.fresh][number - number % size : number]
    )
    while wanted:
        left = size - number % size
        now = min(left, wanted)
        yield BudgetBlock(number, now, left, size * pool.group_size - spent)
        number = number + now
        wanted = wanted - now
        spent = 0
