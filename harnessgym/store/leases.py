"""Leases: who may use a named resource, and until when. A holder that dies loses its lease when it expires.

Leases expire by the database's clock, whatever the clocks of their holders say. Each node that takes rollouts
holds one too, so that nodes are counted until they leave or fall silent.
"""

from sqlalchemy import Connection, delete, func, select, update

from harnessgym.store.backend import insert_into
from harnessgym.store.clock import now
from harnessgym.store.tables import leases


def acquire(conn: Connection, resource: str, holder: str, ttl_s: float) -> bool:
    """Take a lease that is free, expired or already held by `holder`. Returns False if another holds it."""
    # One statement decides, so two processes cannot both find the lease free. If another holds it, the update
    # matches no row and changes nothing; reading the holder back tells who won.
    statement = insert_into(conn)(leases).values(resource=resource, holder=holder, expires=now() + ttl_s)
    free = (leases.c.expires <= now()) | (leases.c.holder == holder)
    statement = statement.on_conflict_do_update(
        index_elements=["resource"], set_={"holder": holder, "expires": now() + ttl_s}, where=free
    )
    conn.execute(statement)
    return holder_of(conn, resource) == holder


def renew(conn: Connection, resource: str, holder: str, ttl_s: float) -> bool:
    """Extend a lease that `holder` still has. Returns False if it was lost."""
    # A lease that has expired may be extended too, as long as nobody else has taken it since.
    ours = (leases.c.resource == resource) & (leases.c.holder == holder)
    return conn.execute(update(leases).where(ours).values(expires=now() + ttl_s)).rowcount == 1


def release(conn: Connection, resource: str, holder: str) -> None:
    """Release a lease, if `holder` still has it."""
    conn.execute(delete(leases).where((leases.c.resource == resource) & (leases.c.holder == holder)))


def holder_of(conn: Connection, resource: str) -> str | None:
    """Return who holds a resource now; None if it is free."""
    query = select(leases.c.holder).where((leases.c.resource == resource) & (leases.c.expires > now()))
    return conn.execute(query).scalar()


def announce_node(conn: Connection, run_id: str, holder: str, ttl_s: float) -> None:
    """Record that a node takes rollouts. It must call this again within `ttl_s`."""
    # Holders' names are unique per process, so leases of nodes that are gone would pile up.
    gone = leases.c.resource.startswith(_of_node(run_id, ""), autoescape=True) & (leases.c.expires <= now())
    conn.execute(delete(leases).where(gone))
    acquire(conn, _of_node(run_id, holder), holder, ttl_s)


def withdraw_node(conn: Connection, run_id: str, holder: str) -> None:
    """Record that a node takes no more rollouts."""
    release(conn, _of_node(run_id, holder), holder)


def nodes(conn: Connection, run_id: str) -> int:
    """Count the nodes of a run that take rollouts."""
    shown = leases.c.resource.startswith(_of_node(run_id, ""), autoescape=True) & (leases.c.expires > now())
    return int(conn.execute(select(func.count()).select_from(leases).where(shown)).scalar_one())


def _of_node(run_id: str, holder: str) -> str:
    return f"node:{run_id}:{holder}"
