"""Leases: who may use a named resource until when. A holder that dies loses it when the time is over.

They end by the database's clock, whatever the clocks of their holders say.
"""

from sqlalchemy import Connection, delete, select, update

from harnessgym.store.backend import insert_into
from harnessgym.store.clock import now
from harnessgym.store.tables import leases


def acquire(conn: Connection, resource: str, holder: str, ttl_s: float) -> bool:
    """Take a lease that is free, expired or already ours. False if another holds it."""
    statement = insert_into(conn)(leases).values(resource=resource, holder=holder, expires=now() + ttl_s)
    free = (leases.c.expires <= now()) | (leases.c.holder == holder)
    statement = statement.on_conflict_do_update(
        index_elements=["resource"], set_={"holder": holder, "expires": now() + ttl_s}, where=free
    )
    conn.execute(statement)
    return holder_of(conn, resource) == holder


def renew(conn: Connection, resource: str, holder: str, ttl_s: float) -> bool:
    """Extend a lease we still hold. False if it was lost."""
    ours = (leases.c.resource == resource) & (leases.c.holder == holder)
    return conn.execute(update(leases).where(ours).values(expires=now() + ttl_s)).rowcount == 1


def release(conn: Connection, resource: str, holder: str) -> None:
    """Give a lease back, if we still hold it."""
    conn.execute(delete(leases).where((leases.c.resource == resource) & (leases.c.holder == holder)))


def holder_of(conn: Connection, resource: str) -> str | None:
    """Who holds a resource now."""
    query = select(leases.c.holder).where((leases.c.resource == resource) & (leases.c.expires > now()))
    return conn.execute(query).scalar()
