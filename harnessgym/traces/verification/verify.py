"""Verifies what a store claims (invariants 1 to 6) from its rows alone.

Every prompt is rebuilt and compared with what the upstream client recorded as sent, and every completion with
what it recorded as sampled. Ordinals are compared with the count at seal, and the ledger with the calls. No
code that wrote the traces is used to check them.
"""

from collections.abc import Callable

from sqlalchemy import Connection

from harnessgym.errors import StoreError
from harnessgym.store import TraceStore, audit, policies, runs
from harnessgym.traces.verification.experts import check_experts
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
    known = [run.id for run in runs.all_of(source)]
    if run_id is not None and run_id not in known:
        raise StoreError(f"The trace database has no run {run_id!r}. It has: {', '.join(known) or 'none'}.")
    _check_references(source, tally)
    wanted = known if run_id is None else [run_id]
    _check_sessions(source, wanted, tally, progress)
    for name in wanted:
        check = LedgerCheck.load(source, name, tally)
        check.run()
        check.check_groups(source, name)
    return tally.report()


def _check_references(conn: Connection, tally: Tally) -> None:
    """Check every foreign key of all runs."""
    for reference in audit.dangling_references(conn):
        tally.find(
            "reference",
            f"{reference.table} row {reference.row}",
            f"refers to a row that {reference.target} does not have.",
        )


def _check_sessions(conn: Connection, run_ids: list[str], tally: Tally, progress: Progress | None) -> None:
    sessions = audit.sessions_of(conn, run_ids)
    ids = {*audit.policies_of(conn, run_ids), *(session.policy_id for session in sessions)}
    known = {name: frozenset(item.version for item in policies.versions(conn, name)) for name in ids}
    for done, session in enumerate(sessions):
        if progress is not None:
            progress(done, len(sessions))
        check = SessionCheck.load(conn, session, known, tally)
        check.run()
        check_experts(conn, session.id, check.calls, tally)
    if progress is not None:
        progress(len(sessions), len(sessions))
