"""Retention: which rollouts may be removed, how much space they take, and their removal in portions.

Removal takes a rollout with all its rows, or only its bodies. It never takes

- frozen rollouts, and rollouts that are pending or running;
- rollouts of a run that is not done: the run counts its groups when it resumes. `abandoned` gives up such
  runs, unless one of their rollouts holds a valid lease;
- rollouts that a surviving policy version was trained on: without them the ledger would not say what that
  version was trained on. `trained` removes them together with their ledger rows, so that token counts still
  balance;
- rollouts with a body that a body of another rollout begins with.

Bodies alone may be removed from every ended rollout that is not frozen: tokens, ledger and graph do not need
them. `vacuum` returns the space of removed rows to the disk (SQLite) or to later rows (PostgreSQL).
"""

import os
import platform
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field

from sqlalchemy import ColumnElement, Connection, Select, exists, func, or_, select

from harnessgym.errors import StoreError
from harnessgym.store import leases, removal
from harnessgym.store.clock import now
from harnessgym.store.connections import Connections, connected
from harnessgym.store.listing import RolloutFilter, wanted_ids
from harnessgym.store.owned_rows import in_portions
from harnessgym.store.tables import bodies, calls, policy_versions, rollouts, runs, trained

LEASE = "store:prune"
"""Lease of the process that removes rows: only one may at a time."""
_LEASE_S = 600.0
Progress = Callable[[str, int, int], None]
"""Called with the kind of item being removed, how many are done, and the total."""


@dataclass(frozen=True, slots=True)
class Retention:
    """What to remove."""

    older_s: float
    """Only rollouts that ended at least this many seconds ago."""
    wanted: RolloutFilter = field(default_factory=RolloutFilter)
    bodies_only: bool = False
    trained: bool = False
    abandoned: bool = False


@dataclass(frozen=True, slots=True)
class Pruned:
    """What was removed, or would be."""

    rollouts: int
    rows: dict[str, int]
    """Number of rows by table."""
    bytes: int
    """Bytes of tokens and texts."""
    kept: dict[str, int] = field(default_factory=dict)
    """How many rollouts were old enough and met the conditions but stayed, by reason."""


@dataclass(frozen=True, slots=True)
class Vacuumed:
    """Size of a database in bytes, before and after."""

    before: int
    after: int


def may_go(retention: Retention) -> Select[tuple[str]]:
    """Return a query of the ids of the rollouts that may be removed."""
    allowed = wanted_ids(retention.wanted).where(_old(retention))
    allowed = allowed.where(~or_(*(_reasons(retention) | _shared_bases()).values()))
    if retention.bodies_only:
        return allowed.where(
            exists().where(calls.c.rollout_id == rollouts.c.id, bodies.c.call_id == calls.c.id)
        )
    return allowed


def plan(url: str, retention: Retention) -> Pruned:
    """Return what `prune` would remove. Changes nothing."""
    with connected(url) as database, database.reader.begin():
        conn = database.reader
        doomed = may_go(retention)
        tables = (bodies,) if retention.bodies_only else removal.TABLES
        count = conn.execute(select(func.count()).select_from(doomed.subquery())).scalar_one()
        removed = removal.measure(conn, tables, doomed)
        removed += removal.measure_texts(conn, removal.unused_texts(conn, but_for=doomed))
        return Pruned(count, dict(removed.rows), removed.bytes, _kept(conn, retention))


def prune(url: str, retention: Retention, progress: Progress = lambda *_: None) -> Pruned:
    """Remove what may be removed. Each portion is one transaction, so an interrupted call can be repeated."""
    with connected(url) as database, ExitStack() as stack:
        holder = f"{platform.node()}:{os.getpid()}"
        _take(database.writer, holder)
        stack.callback(_give_back, database, holder)
        # Portions are planned on one snapshot and removed later. Each removal checks its rollouts again
        # under a lock, because one may have been frozen or trained on in between.
        with database.reader.begin():
            kept = _kept(database.reader, retention)
            portions = in_portions(database.reader, may_go(retention))
        stack.enter_context(removal.made_cheap(database.writer))
        total = sum(map(len, portions))
        gone = 0
        removed = removal.Removed()
        for at, portion in enumerate(portions):
            progress("rollouts", sum(map(len, portions[:at])), total)
            with database.writer.begin():
                ids = _still(database.writer, retention, portion)
                removed += (removal.remove_bodies if retention.bodies_only else removal.remove)(
                    database.writer, ids
                )
                # In the same transaction: the lease is extended exactly when the portion is removed.
                leases.renew(database.writer, LEASE, holder, _LEASE_S)
            gone += len(ids)
        # Texts go last: only now do the removed bodies no longer use them.
        removed += _sweep(database, holder, progress)
        return Pruned(gone, dict(removed.rows), removed.bytes, kept)


def vacuum(url: str, *, full: bool = False) -> Vacuumed:
    """Vacuum a database. Raises `StoreError` if other processes prevent it."""
    with connected(url) as database:
        with database.reader.begin():
            if (holder := leases.holder_of(database.reader, LEASE)) is not None:
                raise StoreError(
                    f"Process {holder} is removing rows from this database. Vacuum it when that is done."
                )
            before = database.backend.size(database.reader)
        database.backend.vacuum(database.writer, full=full)
        with database.reader.begin():
            return Vacuumed(before, database.backend.size(database.reader))


def _sweep(database: Connections, holder: str, progress: Progress) -> removal.Removed:
    """Remove the texts that no body uses any more, including those that earlier removals left."""
    progress("texts", 0, 1)
    # The mark is taken before the search: bodies that the search could not see then count as newer.
    with database.reader.begin():
        mark = removal.mark_bodies(database.reader)
        hashes = removal.unused_texts(database.reader)
    removed = removal.Removed()
    for start in range(0, len(hashes), removal.TEXTS_AT_ONCE):
        progress("texts", start, len(hashes))
        with database.writer.begin():
            removed += removal.remove_texts(
                database.writer, hashes[start : start + removal.TEXTS_AT_ONCE], mark
            )
            leases.renew(database.writer, LEASE, holder, _LEASE_S)
    return removed


def _still(conn: Connection, retention: Retention, portion: list[str]) -> list[str]:
    """Return those of a portion that may still be removed, and lock them until the transaction ends."""
    query = select(rollouts.c.id).where(rollouts.c.id.in_(portion), ~or_(*_reasons(retention).values()))
    return list(conn.execute(query.order_by(rollouts.c.id).with_for_update(of=rollouts)).scalars())


def _kept(conn: Connection, retention: Retention) -> dict[str, int]:
    """Count the rollouts that stay by reason. Each counts for the first reason that holds."""
    counts = dict[str, int]()
    earlier = list[ColumnElement[bool]]()
    for name, reason in (_reasons(retention) | _shared_bases()).items():
        query = wanted_ids(retention.wanted).where(_old(retention), reason, *(~other for other in earlier))
        counts[name] = conn.execute(select(func.count()).select_from(query.subquery())).scalar_one()
        earlier.append(reason)
    return {name: count for name, count in counts.items() if count}


def _old(retention: Retention) -> ColumnElement[bool]:
    return func.coalesce(rollouts.c.ended_at, rollouts.c.created_at) <= now() - retention.older_s


def _reasons(retention: Retention) -> dict[str, ColumnElement[bool]]:
    """Return the conditions under which a rollout stays, by their wording in reports."""
    reasons: dict[str, ColumnElement[bool]] = {
        "frozen": rollouts.c.frozen,
        "not finished": rollouts.c.status.in_(("pending", "running")),
    }
    if retention.bodies_only:
        return reasons
    going_on: ColumnElement[bool] = rollouts.c.run_id.in_(select(runs.c.id).where(runs.c.status != "done"))
    if retention.abandoned:
        other = rollouts.alias("other")
        held = select(other.c.run_id).where(other.c.status == "running", other.c.lease_expires > now())
        going_on = going_on & rollouts.c.run_id.in_(held)
    reasons["of a run that is not done"] = going_on
    if not retention.trained:
        reasons["in the ledger"] = rollouts.c.id.in_(_counted())
    return reasons


def _counted() -> Select[tuple[str]]:
    """Return a query of the rollouts that a version not orphaned was trained on."""
    version = (policy_versions.c.policy_id == trained.c.policy_id) & (
        policy_versions.c.version == trained.c.version
    )
    return select(trained.c.rollout_id).join(policy_versions, version).where(~policy_versions.c.orphaned)


def _shared_bases() -> dict[str, ColumnElement[bool]]:
    """Return the condition that a body of another rollout begins with one of this rollout, by its wording."""
    base = bodies.alias("base")
    later = bodies.alias("later")
    of_base = calls.alias("of_base")
    of_later = calls.alias("of_later")
    joined = later.join(base, base.c.id == later.c.base_id).join(of_base, of_base.c.id == base.c.call_id)
    joined = joined.join(of_later, of_later.c.id == later.c.call_id)
    shared = (
        select(of_base.c.rollout_id).select_from(joined).where(of_base.c.rollout_id != of_later.c.rollout_id)
    )
    return {"what bodies of others begin with": rollouts.c.id.in_(shared)}


def _take(conn: Connection, holder: str) -> None:
    with conn.begin():
        if not leases.acquire(conn, LEASE, holder, _LEASE_S):
            other = leases.holder_of(conn, LEASE)
            raise StoreError(
                f"Process {other} is removing rows from this database. Wait until it is done or, if it was "
                f"killed, for {_LEASE_S / 60:.0f} minutes."
            )


def _give_back(database: Connections, holder: str) -> None:
    with database.writer.begin():
        leases.release(database.writer, LEASE, holder)
