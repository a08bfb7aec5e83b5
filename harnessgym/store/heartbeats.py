"""Heartbeats: each node that takes rollouts holds a lease, which expires when the node falls silent."""

from sqlalchemy import Connection, delete, func, select

from harnessgym.store import leases as held
from harnessgym.store.clock import now
from harnessgym.store.tables import leases


def show(conn: Connection, run_id: str, holder: str, ttl_s: float) -> None:
    """Record that a node takes rollouts. It must call this again within `ttl_s`."""
    # Holders' names are unique per process, so leases of nodes that are gone would pile up.
    gone = leases.c.resource.startswith(_resource(run_id, ""), autoescape=True) & (leases.c.expires <= now())
    conn.execute(delete(leases).where(gone))
    held.acquire(conn, _resource(run_id, holder), holder, ttl_s)


def leave(conn: Connection, run_id: str, holder: str) -> None:
    """Record that a node takes no more rollouts."""
    held.release(conn, _resource(run_id, holder), holder)


def nodes(conn: Connection, run_id: str) -> int:
    """Count the nodes of a run that take rollouts."""
    shown = leases.c.resource.startswith(_resource(run_id, ""), autoescape=True) & (leases.c.expires > now())
    return int(conn.execute(select(func.count()).select_from(leases).where(shown)).scalar_one())


def _resource(run_id: str, holder: str) -> str:
    return f"node:{run_id}:{holder}"
