"""What is waited for in a run, as rows: engines and their leases, nodes and what waits for them, the first
open group.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, func, select

from harnessgym.store.clock import now
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
    first_s: float | None
    """Seconds until the first of those is."""
    running: Mapping[str, int]
    """Rollouts by the node that has them."""
    silent: Mapping[str, tuple[int, float]]
    """By node whose leases are over: how many rollouts, and for how many seconds."""


@dataclass(frozen=True, slots=True)
class OpenGroup:
    """A group that has not ended, and how many are complete."""

    id: str
    ordinal: int
    task_key: str
    submitted_version: int
    age_s: float
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
    started_s: float | None
    """Seconds since a node took it; None before."""
    opened_s: float | None
    """Seconds since its session was opened; None before."""
    sealed: bool
    call: tuple[int, str, float] | None
    """Ordinal and status of its last call, and seconds since it began."""


def unchanged_s(conn: Connection) -> dict[str, float]:
    """Seconds since each worker's row was written last."""
    return dict(conn.execute(select(workers.c.id, now() - workers.c.updated_at)).all())


def update_leases(conn: Connection) -> list[UpdateLease]:
    """Those that are held."""
    held = select(leases.c.resource, leases.c.holder, leases.c.expires - now())
    wanted = leases.c.resource.startswith("update:"), leases.c.expires > now()
    return [UpdateLease(*row) for row in conn.execute(held.where(*wanted).order_by(leases.c.resource))]


def queue(conn: Connection, run_id: str) -> Queue:
    """What waits for nodes."""
    mine = rollouts.c.run_id == run_id
    pending, running = (mine & (rollouts.c.status == status) for status in ("pending", "running"))
    number = conn.execute(select(func.count()).select_from(rollouts).where(pending)).scalar_one()
    put_off, first = conn.execute(
        select(func.count(), func.min(rollouts.c.not_before - now())).where(
            pending, rollouts.c.not_before > now()
        )
    ).one()
    at = conn.execute(
        select(rollouts.c.holder, func.count()).where(running).group_by(rollouts.c.holder)
    ).all()
    lost = select(rollouts.c.holder, func.count(), func.max(now() - rollouts.c.lease_expires)).where(
        running, rollouts.c.lease_expires < now()
    )
    silent = conn.execute(lost.group_by(rollouts.c.holder)).all()
    return Queue(
        number, put_off, first, dict(at), {holder: (count, silent_s) for holder, count, silent_s in silent}
    )


def open_group(conn: Connection, run_id: str, purposes: Sequence[str]) -> OpenGroup | None:
    """The first group of some purposes that is not complete."""
    ours = (groups.c.run_id == run_id) & groups.c.purpose.in_(purposes)
    query = (
        select(
            groups.c.id,
            groups.c.ordinal,
            tasks.c.key.label("task_key"),
            groups.c.submitted_version,
            (now() - groups.c.created_at).label("age_s"),
            groups.c.size,
        )
        .join(tasks, tasks.c.id == groups.c.task_id)
        .where(ours, groups.c.state == "open")
        .order_by(groups.c.purpose, groups.c.ordinal)
        .limit(1)
    )
    row = conn.execute(query).mappings().first()
    if row is None:
        return None
    before = (groups.c.state == "complete") & (groups.c.ordinal < row["ordinal"])
    complete = conn.execute(select(func.count()).select_from(groups).where(ours, before)).scalar_one()
    return OpenGroup(**row, complete_before=complete)


def complete_groups(conn: Connection, run_id: str, purposes: Sequence[str]) -> int:
    """How many groups of some purposes are complete and not consumed."""
    ours = (groups.c.run_id == run_id) & groups.c.purpose.in_(purposes) & (groups.c.state == "complete")
    return int(conn.execute(select(func.count()).select_from(groups).where(ours)).scalar_one())


def unfinished(conn: Connection, group_id: str) -> list[Unfinished]:
    """A group's rollouts that wait or run, by slot."""
    columns = [rollouts.c[name] for name in ("id", "slot", "attempt", "status", "holder")]
    started = (now() - rollouts.c.started_at).label("started_s")
    left = select(*columns, started).where(
        rollouts.c.group_id == group_id, rollouts.c.status.in_(("pending", "running"))
    )
    out = []
    for row in conn.execute(left.order_by(rollouts.c.slot)).mappings().all():
        age = (now() - sessions.c.created_at).label("opened_s")
        opened = select(age, sessions.c.sealed).where(sessions.c.rollout_id == row["id"])
        session = conn.execute(opened.order_by(sessions.c.created_at.desc()).limit(1)).first()
        made = select(calls.c.ordinal, calls.c.status, now() - calls.c.created_at).where(
            calls.c.rollout_id == row["id"]
        )
        call = conn.execute(made.order_by(calls.c.created_at.desc()).limit(1)).first()
        out.append(
            Unfinished(
                **row,
                opened_s=None if session is None else session.opened_s,
                sealed=session is not None and bool(session.sealed),
                call=None if call is None else (call[0], call[1], call[2]),
            )
        )
    return out


def trainer_settings(conn: Connection, run_id: str) -> dict[str, Any]:
    """The trainer's section of a run's configuration as it was recorded; empty if there is none."""
    config = conn.execute(select(runs.c.config).where(runs.c.id == run_id)).scalar() or {}
    return dict(config.get("trainer", {}))
