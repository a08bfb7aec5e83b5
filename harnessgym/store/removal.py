"""Removes rollouts with all their rows, or only their bodies, and the texts that no body uses any more.

The search for unused texts reads one snapshot; their removal works in portions. A body that is written
between the two may use such a text again. So each portion takes a lock that keeps writers of texts out,
searches the bodies that the snapshot could not see, and keeps the texts that they use.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

from sqlalchemy import (
    ColumnElement,
    CompoundSelect,
    Connection,
    LargeBinary,
    Table,
    UniqueConstraint,
    cast,
    delete,
    exists,
    func,
    select,
    text,
    true,
    union_all,
)

from harnessgym.store.owned_rows import OWNED, Rollouts, owned
from harnessgym.store.tables import bodies, groups, messages, metadata, rollouts

TABLES: tuple[Table, ...] = (*reversed(OWNED), rollouts)
"""Tables in order of removal: referring rows first, so that calls go before the segments they consist of."""
_WEIGHTS: dict[str, tuple[str, ...]] = {
    "segments": ("ids", "logprobs"),
    "bodies": ("remainder",),
    "routed_experts": ("experts",),
}
"""Columns whose sizes are counted as the bytes removed."""
TEXTS_AT_ONCE = 5_000
"""Maximum number of texts that are removed in one transaction."""
_LOCK = "LOCK TABLE messages IN SHARE ROW EXCLUSIVE MODE"
"""For PostgreSQL. On SQLite, a writing transaction is the only writer anyway."""
_MARK = {
    "sqlite": "SELECT CAST(coalesce(max(rowid), 0) AS TEXT) FROM bodies",
    "postgresql": "SELECT CAST(pg_snapshot_xmin(pg_current_snapshot()) AS TEXT)",
}
_BEHIND = {
    "sqlite": "bodies.rowid > CAST(:mark AS INTEGER)",
    "postgresql": "age(bodies.xmin) <= age(CAST(CAST(:mark AS xid8) AS xid))",
}
"""Condition that a body is newer than a mark: the transaction that took the mark may not have seen it."""


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
        totals = conn.execute(select(func.count(), _weight(table)).where(_of(table, ids))).one()
        rows[table.name], weight = totals[0], weight + int(totals[1])
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


def mark_bodies(conn: Connection) -> str:
    """Return a mark that separates the bodies of this snapshot from later ones."""
    return str(conn.execute(text(_MARK[conn.dialect.name])).scalar_one())


def unused_texts(conn: Connection, *, but_for: Rollouts | None = None) -> list[str]:
    """Return the hashes of the texts that no body uses, ignoring the bodies of the rollouts `but_for`."""
    others = true() if but_for is None else ~owned(bodies, but_for)
    query = select(messages.c.hash).except_(select(_used(conn, others).subquery()))
    return list(conn.execute(query).scalars())


def measure_texts(conn: Connection, hashes: Sequence[str]) -> Removed:
    """Measure the number and the bytes of texts."""
    in_bytes = cast(messages.c.body, LargeBinary) if conn.dialect.name == "sqlite" else messages.c.body
    size = func.octet_length(in_bytes) if conn.dialect.name == "postgresql" else func.length(in_bytes)
    removed = Removed()
    for start in range(0, len(hashes), TEXTS_AT_ONCE):
        some = messages.c.hash.in_(hashes[start : start + TEXTS_AT_ONCE])
        for count, weight in conn.execute(select(func.count(), func.coalesce(func.sum(size), 0)).where(some)):
            removed += Removed(+Counter({"messages": count}), int(weight))
    return removed


def remove_texts(conn: Connection, hashes: Sequence[str], since: str) -> Removed:
    """Remove at most `TEXTS_AT_ONCE` texts that no body used when the mark was taken.

    Keeps the texts that a newer body uses.
    """
    # Without the lock, a writer could find its text in the table, skip the insert, and commit a body whose
    # text is removed here.
    if conn.dialect.name == "postgresql":
        conn.exec_driver_sql(_LOCK)
    newer: Any = text(_BEHIND[conn.dialect.name]).bindparams(mark=since)
    kept = set(conn.execute(_used(conn, newer)).scalars())
    gone = [key for key in hashes if key not in kept]
    removed = measure_texts(conn, gone)
    conn.execute(delete(messages).where(messages.c.hash.in_(gone)))
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


def _used(conn: Connection, condition: ColumnElement[bool]) -> CompoundSelect[Any]:
    """Return a query of the hashes used by the bodies that meet a condition."""
    each = func.json_each if conn.dialect.name == "sqlite" else func.json_array_elements_text
    element = each(bodies.c.message_hashes).table_valued("value")
    parts = select(element.c.value).select_from(bodies.join(element, true())).where(condition)
    whole = select(bodies.c.remainder_hash).where(bodies.c.remainder_hash.is_not(None), condition)
    return union_all(parts, whole)
