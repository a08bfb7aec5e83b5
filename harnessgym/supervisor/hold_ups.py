"""What holds a run up, thing by thing: what is waited for, since when, and what to do about it.

All of it is read from the store, so it is the same for one machine and for a cluster. In which stage a rollout is follows from
its session and its calls: nodes write down times of stages only when it has ended.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, RowMapping, func, select

from harnessgym.run_config import TrainerSection
from harnessgym.store import presence
from harnessgym.store.tables import calls, groups, leases, rollouts, runs, sessions, tasks
from harnessgym.store.tables import workers as worker_table
from harnessgym.store.workers import EMBEDDED, WorkerRow

_ROLLOUTS = 6
"""Rollouts that are named."""


@dataclass(frozen=True, slots=True)
class Engines:
    """The engines of a run, as far as somebody may wait for them."""

    rows: Sequence[WorkerRow]
    newest: int
    """Version, -1 if there is none."""
    behind: frozenset[str]
    """Ids of those that serve an older version than the newest of their policy."""


@dataclass(frozen=True, slots=True)
class _Wanted:
    batch: int
    any_order: bool


@dataclass(frozen=True, slots=True)
class _Lease:
    holder: str
    left_s: float


def hold_ups(conn: Connection, run_id: str, purposes: Sequence[str], engines: Engines) -> list[str]:
    """Sentences, the cause before what follows from it; empty if there is nothing that anybody waits for."""
    now = time.time()
    said = list(_engines(conn, engines, now))
    said += _nodes(conn, run_id, now)
    said += _groups(conn, run_id, purposes, engines, now)
    return said


def _engines(conn: Connection, engines: Engines, now: float) -> Iterable[str]:
    """Who is out of service, who lags behind, and who holds an update lease."""
    if engines.newest < 0:
        yield "No version is published: the trainer loads the starting weights or has failed. See logs/trainer.log."
    if not engines.rows:
        yield "No engine has registered: the engines load the policy or have failed. See logs/engine-*.log."
    changed = dict(conn.execute(select(worker_table.c.id, worker_table.c.updated_at)).all())
    held = _update_leases(conn, now)
    for row in engines.rows:
        lease = next((name for name, each in held.items() if each.holder == row.id), None)
        yield from _engine(row, engines, now - changed.get(row.id, now), held, lease)
    known = {row.id for row in engines.rows}
    for name, each in held.items():
        if each.holder not in known:
            yield (
                f"{each.holder} holds update lease {name} and is no engine of this run: it ends in {each.left_s:.0f} s unless "
                "renewed. End that process if it goes on."
            )


def _engine(row: WorkerRow, engines: Engines, age_s: float, held: Mapping[str, _Lease], lease: str | None) -> Iterable[str]:
    """What is to be said of one engine."""
    log = f"logs/{row.id}.log" if row.kind == EMBEDDED else "the log of its weight agent"
    holds = f", and holds update lease {lease}, which ends in {held[lease].left_s:.0f} s unless it is renewed" if lease else ""
    if row.state == "dead" and row.kind == EMBEDDED:
        yield f"{row.id} is out of service{holds}: it is started again by itself; if not, see {log}."
    elif row.state == "dead":
        yield (
            f"{row.id} ({row.kind} at {row.address}) is out of service{holds}: it does not answer, or nobody follows it. Start "
            f"the engine, and `harnessgym weights-agent --worker_id {row.id}`, again."
        )
    elif row.state == "starting":
        yield f"{row.id} has been starting for {age_s:.0f} s, and takes no calls before it has a version: see {log}."
    elif row.state in ("draining", "updating"):
        yield (
            f"{row.id} has been {row.state} for {age_s:.0f} s, from version {row.version} to {engines.newest}{holds}. If that "
            f"lasts, see {log} and end its process: another one starts with the newest version."
        )
    elif row.id in engines.behind:
        yield _lagging(row, engines, held, lease, log)


def _lagging(row: WorkerRow, engines: Engines, held: Mapping[str, _Lease], lease: str | None, log: str) -> str:
    """Of an engine that serves an old version and is not being updated."""
    lacks = f"{row.id} serves version {row.version} and lacks version {engines.newest}"
    if lease:
        return f"{lacks}: it holds update lease {lease} and reads the version's files. If that lasts, see {log}."
    if not held:
        return f"{lacks}, though no update lease is held: its weight agent does not look. See {log}, and end its process."
    others = ", ".join(f"{each.holder} (ends in {each.left_s:.0f} s unless renewed)" for each in held.values())
    hint = "See the holder's log; engine.updates_at_once allows more at one time."
    return f"{lacks}: it waits for an update lease, held by {others}. {hint}"


def _update_leases(conn: Connection, now: float) -> dict[str, _Lease]:
    held = conn.execute(select(leases).where(leases.c.resource.startswith("update:"), leases.c.expires > now)).mappings()
    return {str(row["resource"]): _Lease(str(row["holder"]), float(row["expires"]) - now) for row in held}


def _nodes(conn: Connection, run_id: str, now: float) -> Iterable[str]:
    """Whether somebody takes rollouts, and whose leases are over."""
    mine = rollouts.c.run_id == run_id
    running = mine & (rollouts.c.status == "running")
    pending = conn.execute(select(func.count()).select_from(rollouts).where(mine, rollouts.c.status == "pending")).scalar_one()
    later = mine & (rollouts.c.status == "pending") & (rollouts.c.not_before > now)
    put_off, first = conn.execute(select(func.count(), func.min(rollouts.c.not_before)).where(later)).one()
    if not presence.nodes(conn, run_id):
        yield (
            f"No node takes rollouts, and {pending} wait for one: it starts or has failed. See logs/node*.log; on a cluster, "
            "`harnessgym cluster nodes` says where nodes are."
        )
    elif pending > put_off:
        query = select(rollouts.c.holder, func.count()).where(running).group_by(rollouts.c.holder)
        places = ", ".join(f"{holder} has {number}" for holder, number in sorted(conn.execute(query).all()))
        yield (
            f"{pending - put_off} rollouts wait for a place at a node ({places or 'none has any'}). node.max_running allows "
            "more, as far as memory and disk do."
        )
    if put_off:
        yield f"{put_off} rollouts failed and are tried again, the first in {first - now:.0f} s: see why in logs/node*.log."
    over = running & (rollouts.c.lease_expires < now)
    lost = select(rollouts.c.holder, func.count(), func.min(rollouts.c.lease_expires)).where(over)
    for holder, number, since in conn.execute(lost.group_by(rollouts.c.holder)).all():
        yield (
            f"{holder} has said nothing for {now - since:.0f} s longer than its lease, and has {number} rollouts: they run "
            "again as soon as another node looks. See its log."
        )


def _groups(conn: Connection, run_id: str, purposes: Sequence[str], engines: Engines, now: float) -> Iterable[str]:
    """The first group that is waited for, and where each of its rollouts is."""
    ours = (groups.c.run_id == run_id) & groups.c.purpose.in_(purposes)
    columns = (groups.c.id, groups.c.ordinal, groups.c.submitted_version, groups.c.created_at, groups.c.size)
    query = select(*columns, tasks.c.key).join(tasks, tasks.c.id == groups.c.task_id).where(ours, groups.c.state == "open")
    group = conn.execute(query.order_by(groups.c.purpose, groups.c.ordinal).limit(1)).first()
    done = select(func.count()).select_from(groups).where(ours, groups.c.state == "complete")
    complete, wanted = conn.execute(done).scalar_one(), _wanted(conn, run_id)
    if group is None:
        yield from _nothing_open(complete, purposes, engines)
        return
    ready = complete if wanted.any_order else conn.execute(done.where(groups.c.ordinal < group.ordinal)).scalar_one()
    if "train" in purposes and ready >= wanted.batch:
        yield (
            f"A whole batch is complete ({ready} groups, {wanted.batch} are wanted): the trainer trains on it, or has failed "
            "to. See logs/trainer.log."
        )
        return
    unfinished = select(rollouts).where(rollouts.c.group_id == group.id, rollouts.c.status.in_(("pending", "running")))
    left = list(conn.execute(unfinished.order_by(rollouts.c.slot)).mappings())
    waits = "The trainer waits" if "train" in purposes else "The evaluation waits"
    yield (
        f"{waits} for group {group.ordinal} (task {group.key}, submitted {now - group.created_at:.0f} s ago under version "
        f"{group.submitted_version}): {len(left)} of its {group.size} rollouts have not ended. {complete} others are complete."
    )
    for row in left[:_ROLLOUTS]:
        where = "waits for a node" if row["status"] == "pending" else _stage(conn, row, group.submitted_version, engines, now)
        yield f"  rollout {row['id']} (slot {row['slot']}, attempt {row['attempt']}) {where}"


def _wanted(conn: Connection, run_id: str) -> _Wanted:
    """As the run's recorded configuration says."""
    config = conn.execute(select(runs.c.config).where(runs.c.id == run_id)).scalar() or {}
    trainer = {**TrainerSection().model_dump(), **config.get("trainer", {})}
    return _Wanted(int(trainer["groups_per_step"]), trainer["when_stale"] != "wait")


def _nothing_open(complete: int, purposes: Sequence[str], engines: Engines) -> Iterable[str]:
    """Whose turn it is when no group is open."""
    if complete and "train" in purposes:
        yield f"{complete} groups are complete and none is open: the trainer trains, or has failed to. See logs/trainer.log."
    elif engines.behind:
        names = ", ".join(sorted(engines.behind))
        yield (
            f"Nothing runs, and nothing is submitted before {names} serves version {engines.newest}: what started under an "
            "older one could get staler than trainer.max_staleness."
        )
    elif purposes and engines.newest >= 0:
        yield "Nothing runs, and every engine serves the newest version: a node is to submit groups. See logs/node*.log."


def _stage(conn: Connection, row: RowMapping, version: int, engines: Engines, now: float) -> str:
    """Where a running rollout is, as far as its record goes."""
    at, began = f"at {row['holder']}", row["started_at"] or now
    opened = select(sessions.c.created_at, sessions.c.sealed).where(sessions.c.rollout_id == row["id"])
    session = conn.execute(opened.order_by(sessions.c.created_at.desc()).limit(1)).first()
    last = select(calls.c.created_at, calls.c.status, calls.c.ordinal).where(calls.c.rollout_id == row["id"])
    call = conn.execute(last.order_by(calls.c.created_at.desc()).limit(1)).first()
    if session is None:
        return f"{at} has been prepared for {now - began:.0f} s: it waits for memory or disk, or its sandbox is being made."
    if session.sealed:
        return f"{at} is over, and is read back or graded: see the grader's limits (node.evaluate_at_once)."
    if call is None:
        return (
            f"{at} was ready {now - session.created_at:.0f} s ago and has not called: it waits for node.max_running, or starts."
        )
    age = f"{now - call.created_at:.0f} s"
    if call.status != "intent":
        return f"{at} works by itself since its call {call.ordinal}, {age} ago: its tools run, until the task's limits end it."
    able = [each.id for each in engines.rows if each.state == "ready" and each.version >= version]
    whom = ", ".join(able) if able else f"an engine, and none is ready with version {version} or later"
    return f"{at} waits since {age} for the answer to its call {call.ordinal}: from {whom}."
