"""What a run is waiting for: engines and their leases, nodes and their queue, and the first open group."""

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
    """Seconds until it expires, unless it is renewed."""


@dataclass(frozen=True, slots=True)
class Queue:
    """Rollouts that wait for nodes, and nodes that have fallen silent."""

    pending: int
    put_off: int
    """How many of the pending rollouts are to be retried later."""
    first_s: float | None
    """Seconds until the first of those may start."""
    running: Mapping[str, int]
    """Number of running rollouts by node."""
    silent: Mapping[str, tuple[int, float]]
    """By node with expired leases: how many rollouts, and for how many seconds at most."""


@dataclass(frozen=True, slots=True)
class OpenGroup:
    """A group that has not ended, and how many before it are complete."""

    id: str
    ordinal: int
    task_key: str
    submitted_version: int
    age_s: float
    size: int
    complete_before: int
    """Number of complete groups that were submitted before it."""


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A pending or running rollout, and what has been recorded of it so far."""

    id: str
    slot: int
    attempt: int
    status: str
    holder: str | None
    started_s: float | None
    """Seconds since a node claimed it; None if it is pending."""
    opened_s: float | None
    """Seconds since its session was opened; None if it has none yet."""
    sealed: bool
    call: tuple[int, str, float] | None
    """Ordinal and status of its last call, and the seconds since that began."""


def unchanged_s(conn: Connection) -> dict[str, float]:
    """Return the seconds since each worker's row was last written."""
    return dict(conn.execute(select(workers.c.id, now() - workers.c.updated_at)).all())


def update_leases(conn: Connection) -> list[UpdateLease]:
    """Return the update leases that are held."""
    held = select(leases.c.resource, leases.c.holder, leases.c.expires - now())
    wanted = leases.c.resource.startswith("update:"), leases.c.expires > now()
    return [UpdateLease(*row) for row in conn.execute(held.where(*wanted).order_by(leases.c.resource))]


def queue(conn: Connection, run_id: str) -> Queue:
    """Return the rollouts that wait for nodes or run on them."""
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
    """Return the first open group of some purposes; None if there is none."""
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
    """Count the groups of some purposes that are complete and not consumed."""
    ours = (groups.c.run_id == run_id) & groups.c.purpose.in_(purposes) & (groups.c.state == "complete")
    return int(conn.execute(select(func.count()).select_from(groups).where(ours)).scalar_one())


def unfinished(conn: Connection, group_id: str) -> list[Unfinished]:
    """Return a group's pending and running rollouts, by slot."""
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
    """Return the trainer section of a run's recorded configuration; empty if there is none."""
    config = conn.execute(select(runs.c.config).where(runs.c.id == run_id)).scalar() or {}
    return dict(config.get("trainer", {}))
