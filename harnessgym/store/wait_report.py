"""What is waited for in a run, as rows: engines and their leases, nodes and what waits for them, the first
open group.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, func, select

from harnessgym.store.tables import calls, groups, leases, rollouts, runs, sessions, tasks, workers


@dataclass(frozen=True, slots=True)
class UpdateLease:
    """An update lease that is held."""

    resource: str
    holder: str
    left_s: float
    """Until it ends, unless it is renewed."""


@dataclass(frozen=True, slots=True)
class Queue:
    """Rollouts that wait for nodes, and nodes that do not answer."""

    pending: int
    put_off: int
    """Of these, those that are tried again later."""
    first: float | None
    """When the first of those is."""
    running: Mapping[str, int]
    """Rollouts by the node that has them."""
    silent: Mapping[str, tuple[int, float]]
    """By node whose leases are over: how many rollouts, and since when."""


@dataclass(frozen=True, slots=True)
class OpenGroup:
    """A group that has not ended, and how many are complete."""

    id: str
    ordinal: int
    task_key: str
    submitted_version: int
    created_at: float
    size: int
    complete_before: int
    """Complete groups that were submitted before it."""


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A rollout that waits or runs, and what is recorded of it so far."""

    id: str
    slot: int
    attempt: int
    status: str
    holder: str | None
    started_at: float | None
    opened_at: float | None
    """When its session was opened; None before."""
    sealed: bool
    call: tuple[int, str, float] | None
    """Ordinal, status and time of its last call."""


def changed_at(conn: Connection) -> dict[str, float]:
    """When each worker's row was written last."""
    return dict(conn.execute(select(workers.c.id, workers.c.updated_at)).all())


def update_leases(conn: Connection, now: float) -> list[UpdateLease]:
    """Those that are held."""
    held = select(leases.c.resource, leases.c.holder, leases.c.expires - now)
    wanted = leases.c.resource.startswith("update:"), leases.c.expires > now
    return [UpdateLease(*row) for row in conn.execute(held.where(*wanted).order_by(leases.c.resource))]


def queue(conn: Connection, run_id: str, now: float) -> Queue:
    """What waits for nodes."""
    mine = rollouts.c.run_id == run_id
    pending, running = (mine & (rollouts.c.status == status) for status in ("pending", "running"))
    number = conn.execute(select(func.count()).select_from(rollouts).where(pending)).scalar_one()
    put_off, first = conn.execute(
        select(func.count(), func.min(rollouts.c.not_before)).where(pending, rollouts.c.not_before > now)
    ).one()
    at = conn.execute(
        select(rollouts.c.holder, func.count()).where(running).group_by(rollouts.c.holder)
    ).all()
    lost = select(rollouts.c.holder, func.count(), func.min(rollouts.c.lease_expires)).where(
        running, rollouts.c.lease_expires < now
    )
    silent = conn.execute(lost.group_by(rollouts.c.holder)).all()
    return Queue(
        number, put_off, first, dict(at), {holder: (count, since) for holder, count, since in silent}
    )


def open_group(conn: Connection, run_id: str, purposes: Sequence[str]) -> OpenGroup | None:
    """The first group of some purposes that is not complete."""
    ours = (groups.c.run_id == run_id) & groups.c.purpose.in_(purposes)
    columns = (
        groups.c.id,
        groups.c.ordinal,
        tasks.c.key,
        groups.c.submitted_version,
        groups.c.created_at,
        groups.c.size,
    )
    query = select(*columns).join(tasks, tasks.c.id == groups.c.task_id).where(ours, groups.c.state == "open")
    row = conn.execute(query.order_by(groups.c.purpose, groups.c.ordinal).limit(1)).first()
    if row is None:
        return None
    before = (groups.c.state == "complete") & (groups.c.ordinal < row.ordinal)
    return OpenGroup(
        *row, conn.execute(select(func.count()).select_from(groups).where(ours, before)).scalar_one()
    )


def complete_groups(conn: Connection, run_id: str, purposes: Sequence[str]) -> int:
    """How many groups of some purposes are complete and not consumed."""
    ours = (groups.c.run_id == run_id) & groups.c.purpose.in_(purposes) & (groups.c.state == "complete")
    return int(conn.execute(select(func.count()).select_from(groups).where(ours)).scalar_one())


def unfinished(conn: Connection, group_id: str) -> list[Unfinished]:
    """A group's rollouts that wait or run, by slot."""
    columns = [rollouts.c[name] for name in ("id", "slot", "attempt", "status", "holder", "started_at")]
    left = select(*columns).where(
        rollouts.c.group_id == group_id, rollouts.c.status.in_(("pending", "running"))
    )
    out = []
    for row in conn.execute(left.order_by(rollouts.c.slot)).all():
        opened = select(sessions.c.created_at, sessions.c.sealed).where(sessions.c.rollout_id == row.id)
        session = conn.execute(opened.order_by(sessions.c.created_at.desc()).limit(1)).first()
        made = select(calls.c.ordinal, calls.c.status, calls.c.created_at).where(calls.c.rollout_id == row.id)
        call = conn.execute(made.order_by(calls.c.created_at.desc()).limit(1)).first()
        opened_at, sealed = (None, False) if session is None else (session.created_at, bool(session.sealed))
        known = (row.id, row.slot, row.attempt, row.status, row.holder, row.started_at)
        out.append(
            Unfinished(*known, opened_at, sealed, None if call is None else (call[0], call[1], call[2]))
        )
    return out


def trainer_settings(conn: Connection, run_id: str) -> dict[str, Any]:
    """The trainer's section of a run's configuration as it was recorded; empty if there is none."""
    config = conn.execute(select(runs.c.config).where(runs.c.id == run_id)).scalar() or {}
    return dict(config.get("trainer", {}))
