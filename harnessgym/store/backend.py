"""The contract that each database of a trace store implements. Implementations are in `backends/`.

A `StoreWatch` waits for writes of other processes: by notification if the database can notify, otherwise by
polling. It covers what work depends on: the states of runs, groups, rollouts, policy versions and workers,
and leases that are released. A change that happens between two waits, or between the start of the watch and
the first wait, ends the next wait at once. The caller must look at the store after each wait, because a
wait may end without a change. It always ends after a while, since the expiry of a lease notifies nobody.
"""

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Literal, Protocol, Self

from sqlalchemy import URL, Connection, Table
from sqlalchemy.engine import Engine, make_url
from sqlalchemy.exc import ArgumentError

from harnessgym.errors import StoreError

CHANNEL = "harnessgym_changed"
"""Channel that PostgreSQL's triggers notify of changes."""


class StoreWatch(Protocol):
    """A watch for changes, used by one waiter at a time; a context manager."""

    def wait(self) -> None:
        """Wait until something may have changed."""
        ...

    async def changed(self) -> None:
        """Like `wait`, without blocking the event loop. May be cancelled."""
        ...

    def close(self) -> None:
        """Stop watching."""
        ...

    def __enter__(self) -> Self: ...
    def __exit__(self, *exc: object) -> None: ...


class Polling:
    """A watch for databases that cannot notify: every wait ends after `poll_s`."""

    def __init__(self, poll_s: float) -> None:
        self._poll_s = poll_s

    # It does not look at the database itself: every caller reads what it waits for after the wait anyway.
    def wait(self) -> None:
        """See `StoreWatch`."""
        time.sleep(self._poll_s)

    async def changed(self) -> None:
        """See `StoreWatch`."""
        await asyncio.sleep(self._poll_s)

    def close(self) -> None:
        """See `StoreWatch`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class StatementPipeline(Protocol):
    """Prepared statements that are sent without waiting for the result of each."""

    def send(self, sql: str, row: Sequence[Any], otherwise: Exception | None = None) -> None:
        """Send a statement that returns no rows, and its parameters in order.

        Its failure is raised by a later call. So is `otherwise` if it wrote no row.
        """

    def wait(self) -> None:
        """Wait for the results of everything that was sent. Raises the first failure."""


PIPELINE: Final = "harnessgym_pipeline"
"""Key of a connection's pipeline in its `info`, while it has one."""
Synchronous = Literal["NORMAL", "FULL"]
LOCK_WAIT_S = 30.0
"""How long a statement waits for another process's lock."""
_BACKENDS = {
    "sqlite": "harnessgym.store.backends.sqlite:SqliteBackend",
    "postgresql": "harnessgym.store.backends.postgresql:PostgresqlBackend",
}


class Backend(Protocol):
    """One database, at one URL."""

    url: URL
    errors: tuple[type[Exception], ...]
    """Exception types that SQLAlchemy and its driver raise."""
    max_wait_s: float
    """How long to wait for a lock or for a server that does not answer. The URL can set it with the
    driver's own parameter."""

    def create_location(self) -> None:
        """Create what a new database file needs, such as its folder."""

    def refuse_absent(self) -> None:
        """Raise `StoreError` if the database does not exist and opening it would create it."""

    def engine(self) -> Engine:
        """Return an engine whose transactions each read one snapshot.

        Connections with the options `schema.WRITING` begin transactions that write.
        """

    def alone(self, conn: Connection) -> AbstractContextManager[None]:
        """Open a transaction in which only this connection can change the schema."""

    def together(self, conn: Connection) -> AbstractContextManager[None]:
        """Return a context for several writes without a savepoint of each. Entered within a transaction.

        A context that is left with an error undoes everything that was done in it, and the transaction stays
        open. Where the database has pipelines, the connection has a `StatementPipeline` in the context: any
        other statement waits for the pipeline first, and leaving the context raises the first failure of a
        statement, even if it was caught within.
        """

    def in_transaction(self, conn: Connection) -> bool:
        """Return whether the database still has the transaction that SQLAlchemy believes is open."""

    def away(self, error: BaseException) -> bool:
        """Return whether the server is unreachable, starting or stopping, so that it may be back shortly."""

    def undone(self, error: BaseException) -> bool:
        """Return whether the database rolled a statement back only because of concurrent transactions."""

    def passing(self, error: BaseException) -> bool:
        """Return whether the same work may succeed later: the database is away, locked or full."""

    def explain(self, error: BaseException) -> str:
        """Say what happened, where, and what to do."""

    def vacuum(self, conn: Connection, *, full: bool = False) -> None:
        """Reclaim the space of deleted rows. Must run outside a transaction.

        `full` reclaims all of it, even if that locks tables meanwhile. Raises `StoreError` if other
        processes are using the database in a way that prevents it.
        """

    def size(self, conn: Connection) -> int:
        """Return the size of the database in bytes."""

    def watch(self, engine: Engine, poll_s: float, longest_s: float) -> StoreWatch:
        """See `TraceStore.watch`."""


def open_backend(url: str, synchronous: Synchronous = "NORMAL") -> Backend:
    """Return the backend for a URL. Raises `StoreError` if there is none."""
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
    """Return a URL for display: without its password, or exactly as written if it has none."""
    try:
        parsed = make_url(url)
    except ArgumentError:
        return str(url)
    return parsed.render_as_string(hide_password=True) if parsed.password or not isinstance(url, str) else url


def file_of(url: str) -> Path | None:
    """Return the file of a SQLite database; None for a database on a server."""
    backend = open_backend(url)
    path = backend.url.database if backend.url.get_backend_name() == "sqlite" else None
    return None if path is None else Path(path)


def url_of_file(path: Path) -> str:
    """Return the URL of a SQLite file, the inverse of `file_of`."""
    # In a URL, `?` begins the query and `%` an escape; any other character stands for itself.
    return f"sqlite:///{str(path).replace('%', '%25').replace('?', '%3F')}"


def seconds_in(url: URL, name: str, default: float) -> float:
    """Return the seconds that a URL's query sets under a name, or `default`.

    Raises `StoreError` unless the value is a positive finite number.
    """
    seconds_text = str(url.query.get(name, default))
    try:
        seconds = float(seconds_text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < math.inf:
        raise StoreError(
            f"{name}={seconds_text} in {shown(url)} is not a number of seconds: write for example "
            f"{name}={default:.0f}."
        )
    return seconds


def insert_into(conn: Connection) -> Callable[[Table], Any]:
    """Return the `insert` of the connection's database.

    It has `on_conflict_do_nothing` and `on_conflict_do_update`.
    """
    return insert_for(conn.dialect.name)


def insert_for(dialect: str) -> Callable[[Table], Any]:
    """Like `insert_into`, by the name of the database."""
    insert: Callable[[Table], Any] = import_module(f"sqlalchemy.dialects.{dialect}").insert
    return insert
