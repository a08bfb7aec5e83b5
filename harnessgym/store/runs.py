"""Runs and the tasks they draw on."""

import hashlib
import json
import time
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import Connection, insert, select, update

from harnessgym.store.backend import insert_into
from harnessgym.store.tables import new_id, runs, tasks
from harnessgym.task import Task

RunStatus = Literal["evaluating_before", "training", "evaluating_after", "done", "failed"]


@dataclass(frozen=True, slots=True)
class RunRow:
    """One run as the store has it."""

    id: str
    name: str
    config: dict[str, Any]
    code_version: str
    status: RunStatus
    created_at: float
    ended_at: float | None


def add(conn: Connection, name: str, config: dict[str, Any], code_version: str, status: RunStatus) -> str:
    """Record a new run. Returns its id."""
    run_id = new_id()
    conn.execute(
        insert(runs).values(id=run_id, name=name, config=config, code_version=code_version, status=status)
    )
    return run_id


def only(conn: Connection) -> RunRow | None:
    """The newest run of a database; a run folder has one."""
    columns = [runs.c[name] for name in RunRow.__dataclass_fields__]
    row = conn.execute(select(*columns).order_by(runs.c.created_at.desc()).limit(1)).mappings().first()
    return None if row is None else RunRow(**row)


def set_status(conn: Connection, run_id: str, status: RunStatus) -> None:
    """Move a run to another phase."""
    ended = time.time() if status in ("done", "failed") else None
    conn.execute(update(runs).where(runs.c.id == run_id).values(status=status, ended_at=ended))


def lock(conn: Connection, run_id: str) -> None:
    """Until this transaction ends, no other plans, numbers or registers anything in the run. On SQLite
    that is so anyway.
    """
    conn.execute(select(runs.c.id).where(runs.c.id == run_id).with_for_update(key_share=True))


def add_task(conn: Connection, task_set: str, task: Task) -> str:
    """The row id of a task, made if this set, key and payload are new."""
    payload = json.dumps(
        [task.instruction, task.seed, dict(task.files), dict(task.metadata), task.grader], sort_keys=True
    )
    digest = hashlib.blake2b(payload.encode(), digest_size=16).hexdigest()
    same = (tasks.c.set == task_set) & (tasks.c.key == task.id) & (tasks.c.payload_hash == digest)
    found = conn.execute(select(tasks.c.id).where(same)).scalar()
    if found is None:
        row = {"id": new_id(), "set": task_set, "key": task.id, "split": task.split, "payload_hash": digest}
        conn.execute(insert_into(conn)(tasks).values(row).on_conflict_do_nothing())
        found = conn.execute(select(tasks.c.id).where(same)).scalar_one()
    return str(found)


def task_key(conn: Connection, task_id: str) -> str:
    """The id that a stored task has in its set."""
    return str(conn.execute(select(tasks.c.key).where(tasks.c.id == task_id)).scalar_one())
