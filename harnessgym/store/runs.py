"""Runs and their tasks, and what is counted over a run for dashboards and summaries."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sqlalchemy import Connection, Select, func, insert, select, text, update

from harnessgym.errors import StoreError
from harnessgym.store.backend import insert_into
from harnessgym.store.clock import now
from harnessgym.store.tables import calls, groups, new_id, policies, policy_versions, rollouts, runs, tasks
from harnessgym.task import Task

RunStatus = Literal["evaluating_before", "training", "evaluating_after", "done", "failed"]


@dataclass(frozen=True, slots=True)
class RunRow:
    """One stored run."""

    id: str
    name: str
    config: dict[str, Any]
    code_version: str
    status: RunStatus
    created_at: float
    ended_at: float | None


def add(
    conn: Connection,
    name: str,
    config: dict[str, Any],
    code_version: str,
    status: RunStatus,
    run_id: str | None = None,
) -> str:
    """Record a new run, under a new id if none is given. Returns its id."""
    run_id = run_id or new_id()
    conn.execute(
        insert(runs).values(id=run_id, name=name, config=config, code_version=code_version, status=status)
    )
    return run_id


def all_of(conn: Connection) -> list[RunRow]:
    """Return all runs of a database, oldest first."""
    return [
        RunRow(**row) for row in conn.execute(_columns().order_by(runs.c.created_at, runs.c.id)).mappings()
    ]


def get(conn: Connection, run_id: str) -> RunRow | None:
    """Return one run; None if there is no such run."""
    row = conn.execute(_columns().where(runs.c.id == run_id)).mappings().first()
    return None if row is None else RunRow(**row)


def only(conn: Connection) -> RunRow | None:
    """Return the only run of a database; None if it is empty. Raises `StoreError` if there are several."""
    run_rows = all_of(conn)
    if len(run_rows) > 1:
        raise StoreError(
            f"The database holds {len(run_rows)} runs ({', '.join(run.id for run in run_rows)}), but a "
            "run needs a database of its own."
        )
    return run_rows[0] if run_rows else None


def lock_all(conn: Connection) -> None:
    """Keep other transactions from adding runs until this one ends."""
    # A writing transaction on SQLite holds the only write lock, so nothing needs locking there.
    if conn.dialect.name == "postgresql":
        conn.execute(text("LOCK TABLE runs IN SHARE ROW EXCLUSIVE MODE"))


def weights_path(conn: Connection, run_id: str) -> Path | None:
    """Return where a training run wrote its newest policy version: `FOLDER/versions/NAME`.

    None if it has not written one yet.
    """
    query = (
        select(policy_versions.c.path)
        .join(policies, policies.c.id == policy_versions.c.policy_id)
        .where(policies.c.run_id == run_id)
        .order_by(policies.c.id, policy_versions.c.version.desc())
    )
    path = conn.execute(query.limit(1)).scalar()
    return Path(path) if path is not None and Path(path).parent.name == "versions" else None


def set_config(conn: Connection, run_id: str, config: dict[str, Any]) -> None:
    """Replace a run's configuration."""
    conn.execute(update(runs).where(runs.c.id == run_id).values(config=config))


def set_status(conn: Connection, run_id: str, status: RunStatus) -> None:
    """Set a run's phase, and the time it ended if it did."""
    ended = now() if status in ("done", "failed") else None
    conn.execute(update(runs).where(runs.c.id == run_id).values(status=status, ended_at=ended))


def lock(conn: Connection, run_id: str) -> None:
    """Lock a run until the transaction ends.

    Whoever plans, numbers or registers something in a run takes this lock first.
    """
    # SQLAlchemy omits FOR UPDATE on SQLite, where only one transaction writes at a time anyway. On PostgreSQL
    # `key_share` makes it FOR NO KEY UPDATE: others can still insert rows that refer to the run.
    conn.execute(select(runs.c.id).where(runs.c.id == run_id).with_for_update(key_share=True))


def add_task(conn: Connection, task_set: str, task: Task) -> str:
    """Return the row id of a task. Inserts it if this set, key and payload are new."""
    payload = json.dumps(
        [task.instruction, task.seed, dict(task.files), dict(task.metadata), task.grader], sort_keys=True
    )
    digest = hashlib.blake2b(payload.encode(), digest_size=16).hexdigest()
    same = (tasks.c.set == task_set) & (tasks.c.key == task.id) & (tasks.c.payload_hash == digest)
    # Another process may insert the same task in between: insert or ignore, then read the row that won.
    task_id = conn.execute(select(tasks.c.id).where(same)).scalar()
    if task_id is None:
        row = {"id": new_id(), "set": task_set, "key": task.id, "split": task.split, "payload_hash": digest}
        conn.execute(insert_into(conn)(tasks).values(row).on_conflict_do_nothing())
        task_id = conn.execute(select(tasks.c.id).where(same)).scalar_one()
    return str(task_id)


def task_key(conn: Connection, task_id: str) -> str:
    """Return the id that a stored task has in its set."""
    return str(conn.execute(select(tasks.c.key).where(tasks.c.id == task_id)).scalar_one())


def tokens_sampled(conn: Connection, run_id: str) -> int:
    """Count the completion tokens of all calls of a run."""
    query = select(func.coalesce(func.sum(calls.c.completion_len), 0)).join(
        rollouts, rollouts.c.id == calls.c.rollout_id
    )
    return int(conn.execute(query.where(rollouts.c.run_id == run_id)).scalar_one())


def finished_rollouts(conn: Connection, run_id: str, purpose: str | None = None) -> int:
    """Count the rollouts with a valid or tampered verdict."""
    query = select(func.count()).select_from(rollouts).join(groups, groups.c.id == rollouts.c.group_id)
    wanted = [rollouts.c.run_id == run_id, rollouts.c.status == "finished"]
    if purpose is not None:
        wanted.append(groups.c.purpose == purpose)
    return conn.execute(query.where(*wanted)).scalar_one()


def failed_rollouts(conn: Connection, run_id: str, purpose: str) -> dict[str, int]:
    """Count the attempts that ended with an infrastructure failure, by cause."""
    query = select(rollouts.c.cause, func.count()).join(groups, groups.c.id == rollouts.c.group_id)
    wanted = [rollouts.c.run_id == run_id, groups.c.purpose == purpose, rollouts.c.status == "failed"]
    counted = query.where(*wanted).group_by(rollouts.c.cause).order_by(rollouts.c.cause)
    return {cause or "unknown": count for cause, count in conn.execute(counted).all()}


def slots(conn: Connection, run_id: str, purpose: str) -> int:
    """Count the slots of a purpose's groups. Further attempts at a slot do not count."""
    query = select(func.coalesce(func.sum(groups.c.size), 0))
    return int(conn.execute(query.where(groups.c.run_id == run_id, groups.c.purpose == purpose)).scalar_one())


def stop_reasons(conn: Connection, run_id: str) -> dict[str, int]:
    """Count the ended rollouts by stop reason."""
    query = select(rollouts.c.stop_reason, func.count()).where(rollouts.c.run_id == run_id)
    ended = query.where(rollouts.c.stop_reason.is_not(None)).group_by(rollouts.c.stop_reason)
    return dict(conn.execute(ended).all())


def _columns() -> Select[Any]:
    return select(*(runs.c[name] for name in RunRow.__dataclass_fields__))
