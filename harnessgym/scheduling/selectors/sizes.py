"""Group sizes that differ: the checks of a run's settings, and a budget of rollouts that is spent exactly.

Groups are submitted one by one. The budget is kept per block: a block has as many chosen groups as a batch,
and its budget is that number times the usual group size.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harnessgym.errors import ConfigError
from harnessgym.scheduling.selection import SelectionPool, Visit


def needs_groups(selector: str, pool: SelectionPool) -> None:
    """Raises `ConfigError` if groups have one rollout: one reward is no estimate of a success rate."""
    if pool.group_size < 2:
        raise ConfigError(
            f"The selector {selector} chooses group sizes from the results of earlier groups, but with "
            "trainer.group_size = 1 a group is one rollout: raise group_size, or choose uniform, vade or "
            "insight."
        )


def within(
    selector: str, setting: str, size: int, *, least: int | None = None, most: int | None = None
) -> int:
    """Return `size`, a setting of a selector. Raises `ConfigError` if it is below `least` or above `most`."""
    if least is not None and size < least:
        raise ConfigError(
            f"generate.settings, selector {selector}: {setting} = {size} is below trainer.group_size = "
            f"{least}: raise it, or lower group_size."
        )
    if most is not None and size > most:
        raise ConfigError(
            f"generate.settings, selector {selector}: {setting} = {size} is above trainer.group_size = "
            f"{most}: lower it, or raise group_size."
        )
    return size


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
