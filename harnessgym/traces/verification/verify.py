"""Verifies what a store claims (invariants 1 to 6) from its rows alone.

Every prompt is rebuilt and compared with what the upstream client recorded as sent, and every completion with
what it recorded as sampled. Ordinals are compared with the count at seal, and the ledger with the calls. No
code that wrote the traces is used to check them.
"""

from collections.abc import Callable

from sqlalchemy import Connection, exists, select

from harnessgym.errors import StoreError
from harnessgym.store import TraceStore, policies
from harnessgym.store.tables import metadata, rollouts, runs, sessions
from harnessgym.store.tables import policies as policies_table
from harnessgym.traces.verification.findings import Coverage, Finding, FindingKind, Tally, VerificationReport
from harnessgym.traces.verification.ledger import LedgerCheck
from harnessgym.traces.verification.session import SessionCheck

__all__ = ["Coverage", "Finding", "FindingKind", "VerificationReport", "verify"]

Progress = Callable[[int, int], None]
"""Called with the number of sessions checked and the total."""


def verify(
    source: TraceStore | Connection, run_id: str | None = None, progress: Progress | None = None
) -> VerificationReport:
    """Verify a run, or everything in a store. Raises `StoreError` if there is no such run."""
    if isinstance(source, TraceStore):
        return source.read(lambda conn: verify(conn, run_id, progress))
    tally = Tally()
    found = list(source.execute(select(runs.c.id).order_by(runs.c.created_at)).scalars())
    if run_id is not None and run_id not in found:
        raise StoreError(f"The trace database has no run {run_id!r}. It has: {', '.join(found) or 'none'}.")
    _check_references(source, tally)
    wanted = found if run_id is None else [run_id]
    _check_sessions(source, wanted, tally, progress)
    for name in wanted:
        check = LedgerCheck.load(source, name, tally)
        check.run()
        check.check_groups(source, name)
    return tally.report()


def _check_references(conn: Connection, tally: Tally) -> None:
    """Check every foreign key of all runs. A database enforces them, unless someone turned that off."""
    for table in metadata.sorted_tables:
        key = table.primary_key.columns.values()[0]
        for reference in table.foreign_keys:
            parent = reference.column.table.alias("parent")
            there = exists().where(parent.c[reference.column.name] == reference.parent)
            for row in conn.execute(select(key).where(reference.parent.is_not(None), ~there)).scalars():
                tally.find(
                    "reference",
                    f"{table.name} row {row}",
                    f"refers to a row that {reference.column.table.name} does not have.",
                )


def _check_sessions(conn: Connection, run_ids: list[str], tally: Tally, progress: Progress | None) -> None:
    query = select(sessions.c.id, sessions.c.rollout_id, sessions.c.calls_at_seal, rollouts.c.policy_id)
    query = query.join(rollouts, rollouts.c.id == sessions.c.rollout_id).where(rollouts.c.run_id.in_(run_ids))
    found = conn.execute(query.order_by(sessions.c.created_at, sessions.c.id)).mappings().all()
    named = (
        conn.execute(select(policies_table.c.id).where(policies_table.c.run_id.in_(run_ids))).scalars().all()
    )
    ids = {*named, *(row["policy_id"] for row in found)}
    known = {name: frozenset(item.version for item in policies.versions(conn, name)) for name in ids}
    for done, row in enumerate(found):
        if progress is not None:
            progress(done, len(found))
        SessionCheck.load(conn, row, known, tally).run()
    if progress is not None:
        progress(len(found), len(found))
