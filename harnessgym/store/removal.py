"""Removes rollouts with all their rows, or only their bodies."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

from sqlalchemy import ColumnElement, Connection, Table, UniqueConstraint, delete, exists, func, select

from harnessgym.store.owned_rows import OWNED, Rollouts, owned
from harnessgym.store.tables import bodies, groups, metadata, rollouts

TABLES: tuple[Table, ...] = (*reversed(OWNED), rollouts)
"""Tables in order of removal: referring rows first, so that calls go before the segments they consist of."""
_WEIGHTS: dict[str, tuple[str, ...]] = {"segments": ("ids", "logprobs"), "bodies": ("remainder",)}
"""Columns whose sizes are counted as the bytes removed."""


@dataclass(frozen=True, slots=True)
class Removed:
    """How much was removed."""

    rows: Counter[str] = field(default_factory=Counter)
    """By table."""
    bytes: int = 0
    """Bytes of tokens and texts."""

    def __add__(self, other: Self) -> "Removed":
        return Removed(self.rows + other.rows, self.bytes + other.bytes)


def measure(conn: Connection, tables: Sequence[Table], ids: Rollouts) -> Removed:
    """Measure the rows of rollouts in some tables."""
    rows = Counter[str]()
    weight = 0
    for table in tables:
        found = conn.execute(select(func.count(), _weight(table)).where(_of(table, ids))).one()
        rows[table.name], weight = found[0], weight + int(found[1])
    return Removed(+rows, weight)


def remove(conn: Connection, ids: Sequence[str]) -> Removed:
    """Remove rollouts with all their rows, and the groups that become empty."""
    removed = measure(conn, TABLES, ids)
    of_groups = list(
        conn.execute(select(rollouts.c.group_id).where(rollouts.c.id.in_(ids)).distinct()).scalars()
    )
    for table in TABLES:
        conn.execute(delete(table).where(_of(table, ids)))
    empty = groups.c.id.in_(of_groups) & ~exists().where(rollouts.c.group_id == groups.c.id)
    made_empty = conn.execute(delete(groups).where(empty)).rowcount
    return removed + Removed(Counter({"groups": made_empty} if made_empty else {}))


def remove_bodies(conn: Connection, ids: Sequence[str]) -> Removed:
    """Remove the stored request and answer bodies. Tokens stay."""
    removed = measure(conn, (bodies,), ids)
    conn.execute(delete(bodies).where(owned(bodies, ids)))
    return removed


@contextmanager
def made_cheap(conn: Connection) -> Iterator[None]:
    """Make the database check foreign keys cheaply while rows are removed. Must start outside a transaction.

    Removing a row makes the database look for rows that refer to it. On SQLite the check is turned off:
    whatever refers to a rollout's rows is removed with them. PostgreSQL gets the indexes that only removal
    needs; they are built without blocking writers and dropped afterwards.
    """
    driver: Any = conn.connection.driver_connection
    if conn.dialect.name == "sqlite":
        driver.execute("PRAGMA foreign_keys=OFF")
        try:
            yield
        finally:
            driver.execute("PRAGMA foreign_keys=ON")
        return
    wanted = {f"prune_{column.table.name}_{column.name}": column for column in unserved()}
    try:
        # A concurrent build that is interrupted leaves an invalid index behind, so drop it first.
        for name, column in wanted.items():
            driver.execute(f"DROP INDEX IF EXISTS {name}")
            driver.execute(f"CREATE INDEX CONCURRENTLY {name} ON {column.table.name} ({column.name})")
        yield
    finally:
        for name in wanted:
            driver.execute(f"DROP INDEX IF EXISTS {name}")


def unserved() -> list[ColumnElement[Any]]:
    """Return the columns that refer to removable rows and are not the first column of an index."""
    removable = {table.name for table in (*TABLES, groups, metadata.tables["messages"])}
    out = list[ColumnElement[Any]]()
    for table in metadata.sorted_tables:
        first = {next(iter(index.columns)).name for index in table.indexes}
        first |= {
            next(iter(rule.columns)).name for rule in table.constraints if isinstance(rule, UniqueConstraint)
        }
        for key in table.foreign_keys:
            if key.column.table.name in removable and key.parent.name not in first:
                out.append(key.parent)
    return sorted(out, key=str)


def _of(table: Table, ids: Rollouts) -> ColumnElement[bool]:
    return rollouts.c.id.in_(ids) if table is rollouts else owned(table, ids)


def _weight(table: Table) -> ColumnElement[int]:
    names = _WEIGHTS.get(table.name, ())
    total: Any = sum((func.coalesce(func.length(table.c[name]), 0) for name in names), start=0)
    return func.coalesce(func.sum(total), 0)
