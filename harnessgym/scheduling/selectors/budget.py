"""A budget of rollouts that is spent exactly, although groups differ in size and are submitted one by one.

The budget is kept per block. A block has as many chosen groups as a batch, and its budget is that number
times the usual group size.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harnessgym.scheduling.selection import SelectionPool, Visit


@dataclass(frozen=True, slots=True)
class BudgetBlock:
    """The rest of one block."""

    number: int
    """Number of its next group."""
    wanted: int
    """Groups to choose now, the first of those left."""
    groups: int
    """Groups left, including those to choose now."""
    rollouts: int
    """Rollouts left for them; less than two per group only if another configuration began the block."""


def blocks(pool: SelectionPool, number: int, wanted: int, visits: Sequence[Visit]) -> Iterator[BudgetBlock]:
    """The blocks of the `wanted` groups that follow `number` others."""
    size = pool.groups_per_step
    # Only fresh visits were chosen by a selector; requeued groups have no part in its budget.
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
