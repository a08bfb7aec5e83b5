"""Removes texts that no body uses any more. The search reads one snapshot; removal works in portions.

A body that is written between the two may use such a text again. So each portion takes a lock that keeps
writers of texts out, searches the bodies that the snapshot could not see, and keeps the texts that they use.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    ColumnElement,
    CompoundSelect,
    Connection,
    LargeBinary,
    cast,
    delete,
    func,
    select,
    text,
    true,
    union_all,
)

from harnessgym.store.owned_rows import Rollouts, owned
from harnessgym.store.removal import Removed
from harnessgym.store.tables import bodies, messages

AT_ONCE = 5_000
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


def mark(conn: Connection) -> str:
    """Return a mark that separates the bodies of this snapshot from later ones."""
    return str(conn.execute(text(_MARK[conn.dialect.name])).scalar_one())


def unused(conn: Connection, *, but_for: Rollouts | None = None) -> list[str]:
    """Return the hashes of the texts that no body uses, ignoring the bodies of the rollouts `but_for`."""
    others = true() if but_for is None else ~owned(bodies, but_for)
    found = select(messages.c.hash).except_(select(_used(conn, others).subquery()))
    return list(conn.execute(found).scalars())


def measure(conn: Connection, hashes: Sequence[str]) -> Removed:
    """Measure the number and the bytes of texts."""
    in_bytes = cast(messages.c.body, LargeBinary) if conn.dialect.name == "sqlite" else messages.c.body
    size = func.octet_length(in_bytes) if conn.dialect.name == "postgresql" else func.length(in_bytes)
    removed = Removed()
    for start in range(0, len(hashes), AT_ONCE):
        some = messages.c.hash.in_(hashes[start : start + AT_ONCE])
        for count, weight in conn.execute(select(func.count(), func.coalesce(func.sum(size), 0)).where(some)):
            removed += Removed(+Counter({"messages": count}), int(weight))
    return removed


def remove(conn: Connection, hashes: Sequence[str], since: str) -> Removed:
    """Remove at most `AT_ONCE` texts that no body used when the mark was taken.

    Keeps the texts that a newer body uses.
    """
    # Without the lock, a writer could find its text in the table, skip the insert, and commit a body whose
    # text is removed here.
    if conn.dialect.name == "postgresql":
        conn.exec_driver_sql(_LOCK)
    newer: Any = text(_BEHIND[conn.dialect.name]).bindparams(mark=since)
    kept = set(conn.execute(_used(conn, newer)).scalars())
    gone = [key for key in hashes if key not in kept]
    removed = measure(conn, gone)
    conn.execute(delete(messages).where(messages.c.hash.in_(gone)))
    return removed


def _used(conn: Connection, condition: ColumnElement[bool]) -> CompoundSelect[Any]:
    """Return a query of the hashes used by the bodies that meet a condition."""
    each = func.json_each if conn.dialect.name == "sqlite" else func.json_array_elements_text
    element = each(bodies.c.message_hashes).table_valued("value")
    parts = select(element.c.value).select_from(bodies.join(element, true())).where(condition)
    whole = select(bodies.c.remainder_hash).where(bodies.c.remainder_hash.is_not(None), condition)
    return union_all(parts, whole)
