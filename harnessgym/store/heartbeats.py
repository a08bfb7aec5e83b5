"""Which nodes of a run take rollouts now: each holds a lease of its own, which ends when it is silent."""

from sqlalchemy import Connection, delete, func, select

from harnessgym.store import leases as held
from harnessgym.store.clock import now
from harnessgym.store.tables import leases


def show(conn: Connection, run_id: str, holder: str, ttl_s: float) -> None:
    """A node takes rollouts, and will say so again within `ttl_s`."""
    gone = leases.c.resource.startswith(_resource(run_id, ""), autoescape=True) & (leases.c.expires <= now())
    conn.execute(delete(leases).where(gone))
    held.acquire(conn, _resource(run_id, holder), holder, ttl_s)


def leave(conn: Connection, run_id: str, holder: str) -> None:
    """A node takes no more rollouts."""
    held.release(conn, _resource(run_id, holder), holder)


def nodes(conn: Connection, run_id: str) -> int:
    """How many nodes of a run take rollouts."""
    shown = leases.c.resource.startswith(_resource(run_id, ""), autoescape=True) & (leases.c.expires > now())
    return int(conn.execute(select(func.count()).select_from(leases).where(shown)).scalar_one())


def _resource(run_id: str, holder: str) -> str:
    return f"node:{run_id}:{holder}"
