"""Vacuum: the space of removed rows goes back to the disk (SQLite), or to later rows (PostgreSQL)."""

from dataclasses import dataclass

from harnessgym.errors import StoreError
from harnessgym.store import leases, retention
from harnessgym.store.connections import connected


@dataclass(frozen=True, slots=True)
class Vacuumed:
    """Bytes that a database takes."""

    before: int
    after: int


def vacuum(url: str, *, full: bool = False) -> Vacuumed:
    """Vacuum a database. Raises `StoreError` if others are in the way."""
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
