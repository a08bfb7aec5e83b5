"""Engine workers: where they listen, what they serve."""

import time
from dataclasses import asdict, dataclass
from typing import Literal

from sqlalchemy import Connection, select, update

from harnessgym.store.backend import insert_into
from harnessgym.store.tables import workers

WorkerState = Literal["starting", "ready", "draining", "updating", "dead"]
_OUTSIDE = ("litellm",)
"""Kinds whose workers are outside models."""


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """One engine worker."""

    id: str
    run_id: str | None
    kind: str
    """embedded, vllm or sglang."""
    address: str
    """Base URL, e.g. `http://127.0.0.1:8001`."""
    version: int
    """Policy version it serves."""
    state: WorkerState


def upsert(conn: Connection, worker: WorkerRow) -> None:
    """Register a worker or replace what is known of it."""
    values = {**asdict(worker), "updated_at": time.time()}
    conn.execute(insert_into(conn)(workers).values(values).on_conflict_do_update(index_elements=["id"], set_=values))


def set_state(conn: Connection, worker_id: str, state: WorkerState) -> None:
    """Change a worker's state alone."""
    conn.execute(update(workers).where(workers.c.id == worker_id).values(state=state, updated_at=time.time()))


def retire(conn: Connection, run_id: str) -> None:
    """All workers of a run are gone: nobody may route to their old addresses."""
    conn.execute(update(workers).where(workers.c.run_id == run_id).values(state="dead", updated_at=time.time()))


def of_run(conn: Connection, run_id: str | None) -> list[WorkerRow]:
    """All workers of a run by id."""
    columns = [workers.c[name] for name in WorkerRow.__dataclass_fields__]
    rows = conn.execute(select(*columns).where(workers.c.run_id == run_id).order_by(workers.c.id)).mappings()
    return [WorkerRow(**row) for row in rows]


def engines_of(conn: Connection, run_id: str) -> list[WorkerRow]:
    """Those of a run's workers that serve a policy version: outside models do not."""
    return [worker for worker in of_run(conn, run_id) if worker.kind not in _OUTSIDE]
