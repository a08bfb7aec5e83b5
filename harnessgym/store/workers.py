"""Engine workers: where they listen and what they serve.

An agent that follows an engine which no supervisor started holds a lease for it. When the lease expires, both
engine and agent may be gone, and the last recorded state is no longer reliable.
"""

from dataclasses import asdict, dataclass, replace
from typing import Literal

from sqlalchemy import Connection, select, update

from harnessgym.store import leases as held
from harnessgym.store.backend import insert_into
from harnessgym.store.clock import now
from harnessgym.store.tables import leases, workers

WorkerState = Literal["starting", "ready", "draining", "updating", "silent", "dead", "ended"]
"""silent: it accepts connections but does not answer. dead: it is lost. ended: the worker, or the agent that
follows it, was stopped on purpose."""
GONE: tuple[WorkerState, ...] = ("dead", "ended")
EMBEDDED = "embedded"
"""Kind of the engines that a run's supervisor starts."""
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
    policy_id: str | None = None
    """The policy that it serves; None if the run has only one, and for outside models."""

    def follows(self, policy_id: str) -> bool:
        """Return whether it serves versions of a policy."""
        return self.policy_id in (None, policy_id)


def upsert(conn: Connection, worker: WorkerRow) -> None:
    """Register a worker, or replace its row."""
    values = {**asdict(worker), "updated_at": now()}
    conn.execute(
        insert_into(conn)(workers).values(values).on_conflict_do_update(index_elements=["id"], set_=values)
    )


def set_state(conn: Connection, worker_id: str, state: WorkerState) -> None:
    """Set a worker's state and nothing else."""
    conn.execute(update(workers).where(workers.c.id == worker_id).values(state=state, updated_at=now()))


def drain(conn: Connection, worker_id: str) -> None:
    """Stop sending new calls to a worker that is ready. Workers in other states stay as they are."""
    # The condition is part of the update: a worker that died meanwhile must not become `draining`, which
    # counts as serving.
    ready = (workers.c.id == worker_id) & (workers.c.state == "ready")
    conn.execute(update(workers).where(ready).values(state="draining", updated_at=now()))


def retire(conn: Connection, run_id: str) -> None:
    """Mark the engines that a run's last supervisor started as ended. Other workers stay as they are.

    Those engines are gone, and nothing may route to their old addresses.
    """
    ours = (workers.c.run_id == run_id) & (workers.c.kind == EMBEDDED)
    conn.execute(update(workers).where(ours).values(state="ended", updated_at=now()))


def show(conn: Connection, worker_id: str, ttl_s: float) -> None:
    """Record that a worker is followed. Its follower must call this again within `ttl_s`."""
    held.acquire(conn, _resource(worker_id), worker_id, ttl_s)


def leave(conn: Connection, worker_id: str) -> None:
    """Record that a worker is no longer followed. From then on its stored state counts."""
    held.release(conn, _resource(worker_id), worker_id)


def of_run(conn: Connection, run_id: str | None) -> list[WorkerRow]:
    """Return all workers of a run by id."""
    columns = [workers.c[name] for name in WorkerRow.__dataclass_fields__]
    rows = conn.execute(select(*columns).where(workers.c.run_id == run_id).order_by(workers.c.id)).mappings()
    return [WorkerRow(**row) for row in rows]


def engines_of(conn: Connection, run_id: str) -> list[WorkerRow]:
    """Return the run's workers that serve a policy version, which outside models do not.

    A worker whose lease has expired is returned as `dead`.
    """
    # Only an expired lease counts, not a missing one: a supervisor's own engines have none.
    engines = [worker for worker in of_run(conn, run_id) if worker.kind not in _OUTSIDE]
    over = leases.c.resource.in_([_resource(worker.id) for worker in engines]) & (leases.c.expires <= now())
    silent = set(conn.execute(select(leases.c.resource).where(over)).scalars())
    return [replace(worker, state="dead") if _resource(worker.id) in silent else worker for worker in engines]


def _resource(worker_id: str) -> str:
    return f"worker:{worker_id}"
