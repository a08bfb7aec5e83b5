"""Vacuum: returns the space of removed rows to the disk (SQLite) or to later rows (PostgreSQL)."""

from dataclasses import dataclass

from harnessgym.errors import StoreError
from harnessgym.store import leases, retention
from harnessgym.store.connections import connected


@dataclass(frozen=True, slots=True)
class Vacuumed:
    """Size of a database in bytes, before and after."""

    before: int
    after: int


def vacuum(url: str, *, full: bool = False) -> Vacuumed:
    """Vacuum a database. Raises `StoreError` if other processes prevent it."""
    with connected(url) as database:
        with database.reader.begin():
            if (holder := leases.holder_of(database.reader, retention.LEASE)) is not None:
                raise StoreError(
                    f"Process {holder} is removing rows from this database. Vacuum it when that is done."
                )
            before = database.backend.size(database.reader)
        database.backend.vacuum(database.writer, full=full)
        with database.reader.begin():
            return Vacuumed(before, database.backend.size(database.reader))
