"""What differs between the databases that a trace store can use; each is a member of `backends/`."""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, Protocol

from sqlalchemy import URL, Connection, Table
from sqlalchemy.engine import Engine, make_url
from sqlalchemy.exc import ArgumentError

from harnessgym.errors import StoreError
from harnessgym.store.watch import StoreWatch

Synchronous = Literal["NORMAL", "FULL"]
PATIENCE_S = 30.0
"""How long a statement waits for another process's lock."""
_BACKENDS = {
    "sqlite": "harnessgym.store.backends.sqlite:SqliteBackend",
    "postgresql": "harnessgym.store.backends.postgresql:PostgresqlBackend",
}


class Backend(Protocol):
    """One database, at one URL."""

    url: URL
    errors: tuple[type[Exception], ...]
    """What SQLAlchemy and its driver raise."""
    patience_s: float
    """How long to wait for a lock or a server that does not answer; the URL may say so, in the driver's
    own words."""

    def make_place(self) -> None:
        """Make what a new database needs around it."""

    def refuse_absent(self) -> None:
        """Raise `StoreError` if there is no database, where opening it would make one."""

    def engine(self) -> Engine:
        """Connections whose transactions are one snapshot; those that write begin as `schema.WRITING`
        asks.
        """

    def alone(self, conn: Connection) -> AbstractContextManager[None]:
        """A transaction in which this connection alone changes the schema."""

    def in_transaction(self, conn: Connection) -> bool:
        """Whether the database still has the transaction that SQLAlchemy believes in."""

    def away(self, error: BaseException) -> bool:
        """Whether nobody answered, or the server is just starting or stopping: it may be back in a moment."""

    def undone(self, error: BaseException) -> bool:
        """Whether the database gave up a statement only because of what others did at the same time."""

    def passing(self, error: BaseException) -> bool:
        """Whether the same may succeed later: the database is away, locked or full."""

    def explain(self, error: BaseException) -> str:
        """What happened, where, and what to do."""

    def vacuum(self, conn: Connection, *, full: bool = False) -> None:
        """Give back the space of what was deleted; outside transactions. `full`: whatever that locks
        meanwhile.

        Raises `StoreError` where others are in the way.
        """

    def size(self, conn: Connection) -> int:
        """Bytes that the database takes."""

    def watch(self, engine: Engine, poll_s: float, longest_s: float) -> StoreWatch:
        """See `TraceStore.watch`."""


def open_backend(url: str, synchronous: Synchronous = "NORMAL") -> Backend:
    """The backend of a URL. Raises `StoreError` if there is none."""
    try:
        parsed = make_url(url)
        path = _BACKENDS[parsed.get_backend_name()]
    except (ArgumentError, KeyError):
        raise StoreError(
            f"The trace store cannot use {shown(url)!r}: give a `sqlite:///path` or "
            "`postgresql+psycopg://host/database` URL."
        ) from None
    module, name = path.split(":")
    backend: Backend = getattr(import_module(module), name)(parsed, synchronous)
    return backend


def shown(url: "str | URL") -> str:
    """A URL for people: without its password, and as they wrote it where it has none."""
    try:
        parsed = make_url(url)
    except ArgumentError:
        return str(url)
    return parsed.render_as_string(hide_password=True) if parsed.password or not isinstance(url, str) else url


def file_of(url: str) -> Path | None:
    """The file of a SQLite database; None for a database on a server."""
    backend = open_backend(url)
    path = backend.url.database if backend.url.get_backend_name() == "sqlite" else None
    return None if path is None else Path(path)


def asked_patience(url: URL, name: str, default: float) -> float:
    """The seconds that a URL's query gives under a name. Raises `StoreError` if they are none."""
    given = str(url.query.get(name, default))
    try:
        seconds = float(given)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < math.inf:
        raise StoreError(
            f"{name}={given} in {shown(url)} is no number of seconds: write for example {name}={default:.0f}."
        )
    return seconds


def insert_into(conn: Connection) -> Callable[[Table], Any]:
    """The `insert` of a connection's database, which has `on_conflict_do_nothing` and
    `on_conflict_do_update`.
    """
    return insert_for(conn.dialect.name)


def insert_for(dialect: str) -> Callable[[Table], Any]:
    """The same, by the name of the database."""
    insert: Callable[[Table], Any] = import_module(f"sqlalchemy.dialects.{dialect}").insert
    return insert
