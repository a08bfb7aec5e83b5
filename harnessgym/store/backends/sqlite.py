"""SQLite: a file on a local disk, in WAL mode.

Writers take turns: a writing transaction takes the write lock when it begins.
"""

import contextlib
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy import URL, Connection, create_engine, event
from sqlalchemy.engine import Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import QueuePool

from harnessgym.errors import StoreError
from harnessgym.store.backend import LOCK_WAIT_S, Polling, StoreWatch, Synchronous, seconds_in, url_of_file
from harnessgym.store.clock import SQLITE_NOW
from harnessgym.store.schema import WRITING

_PAGE = 16_384
"""Bytes per page of new databases. With SQLite's default of 4 KB, rows of 1-2 KB leave an eighth unused."""


class SqliteBackend:
    """See `harnessgym.store.backend.Backend`."""

    errors: tuple[type[Exception], ...] = (DBAPIError, sqlite3.Error)

    def __init__(self, url: URL, synchronous: Synchronous) -> None:
        """`?timeout=5` in the URL: seconds to wait for another process's lock."""
        self.url = url
        self.max_wait_s = seconds_in(url, "timeout", LOCK_WAIT_S)
        self._synchronous = synchronous

    def create_location(self) -> None:
        """See `Backend.create_location`."""
        if self.url.database:
            Path(self.url.database).parent.mkdir(parents=True, exist_ok=True)

    def refuse_absent(self) -> None:
        """See `Backend.refuse_absent`."""
        path = self.url.database
        if path and not Path(path).is_file():
            raise StoreError(
                f"There is no trace database at {path}. Run `harnessgym store migrate {self._name}` to make "
                "one."
            )

    def engine(self) -> Engine:
        """See `Backend.engine`."""
        arguments = {"timeout": self.max_wait_s, "check_same_thread": False}
        engine = create_engine(
            self.url, connect_args=arguments, poolclass=QueuePool, pool_size=8, max_overflow=-1
        )
        pragmas = (
            f"page_size={_PAGE}",
            "journal_mode=WAL",
            f"synchronous={self._synchronous}",
            "foreign_keys=ON",
            "temp_store=MEMORY",
        )

        @event.listens_for(engine, "connect")
        def _configure(dbapi: sqlite3.Connection, _record: object) -> None:
            # The driver must not begin transactions by itself: `_begin` does, and chooses when to lock.
            dbapi.isolation_level = None
            for pragma in pragmas:
                dbapi.execute(f"PRAGMA {pragma}")
            dbapi.create_function(SQLITE_NOW, 0, time.time)

        @event.listens_for(engine, "begin")
        def _begin(conn: Connection) -> None:
            # A deferred transaction that reads first and writes later fails with SQLITE_BUSY at once if
            # another process wrote in between; the timeout does not apply. IMMEDIATE waits for the lock.
            writing = all(conn.get_execution_options().get(name) == value for name, value in WRITING.items())
            conn.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN")

        return engine

    @contextlib.contextmanager
    def alone(self, conn: Connection) -> Iterator[None]:
        """See `Backend.alone`."""
        conn.execution_options(**WRITING)
        # A table that others refer to can only be rebuilt with foreign keys off. SQLite ignores the pragma
        # inside a transaction, so it is set before the transaction begins and reset after it ended.
        _driver(conn).execute("PRAGMA foreign_keys=OFF")
        try:
            yield
        finally:
            conn.rollback()
            _driver(conn).execute("PRAGMA foreign_keys=ON")

    @contextlib.contextmanager
    def together(self, conn: Connection) -> Iterator[None]:
        """See `Backend.together`."""
        driver = _driver(conn)
        driver.execute("SAVEPOINT together")
        try:
            yield
            driver.execute("RELEASE together")
        except BaseException:
            # SQLite rolls everything back by itself when, for example, the disk is full.
            if driver.in_transaction:
                driver.execute("ROLLBACK TO together")
                driver.execute("RELEASE together")
            raise

    def in_transaction(self, conn: Connection) -> bool:
        """See `Backend.in_transaction`. SQLite rolls back by itself, e.g. when the disk is full."""
        return _driver(conn).in_transaction

    def away(self, error: BaseException) -> bool:  # noqa: ARG002 there is no server to wait for
        """See `Backend.away`."""
        return False

    def undone(self, error: BaseException) -> bool:  # noqa: ARG002 writers take turns
        """See `Backend.undone`."""
        return False

    def passing(self, error: BaseException) -> bool:
        """See `Backend.passing`."""
        return _code(error) in (["SQLITE", "FULL"], ["SQLITE", "BUSY"], ["SQLITE", "LOCKED"])

    def explain(self, error: BaseException) -> str:
        """See `Backend.explain`."""
        cause = getattr(error, "orig", error)
        match _code(error):
            case ["SQLITE", "FULL"]:
                return (
                    f"The disk that holds {self._name} is full ({cause}). Free space and go on: what was "
                    "committed is safe."
                )
            case ["SQLITE", "READONLY" | "CANTOPEN" | "PERM"]:
                return (
                    f"The trace database {self._name} cannot be opened for writing ({cause}). "
                    "Check the folder and its permissions."
                )
            case ["SQLITE", "BUSY" | "LOCKED"]:
                return (
                    f"The trace database {self._name} stayed locked for {self.max_wait_s:g} s. "
                    "End the process that holds it."
                )
            case ["SQLITE", "CORRUPT" | "NOTADB"]:
                return (
                    f"{self._name} is damaged or not a trace database ({cause}). Restore it from a copy, or "
                    "give another file."
                )
            case _:
                return f"The trace database {self._name} refused: {cause}"

    # The file is always rewritten.
    def vacuum(self, conn: Connection, *, full: bool = False) -> None:  # noqa: ARG002
        """See `Backend.vacuum`."""
        driver = _driver(conn)
        try:
            driver.execute("VACUUM")
        except sqlite3.OperationalError as error:
            if _code(error) == ["SQLITE", "BUSY"]:
                raise StoreError(
                    f"Other processes write to {self._name}: nothing was changed. End them and try again."
                ) from error
            raise
        # VACUUM wrote the new pages to the WAL: the file shrinks when they are copied back, and readers of
        # an older snapshot prevent that.
        (in_the_way, *_) = driver.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if in_the_way:
            raise StoreError(
                f"Other processes read {self._name}: it is compacted, but its file shrinks only when they "
                "have ended. End them and try again."
            )

    def size(self, conn: Connection) -> int:
        """See `Backend.size`."""
        driver = _driver(conn)
        pages, each = (driver.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size"))
        return int(pages * each)

    # A file cannot notify.
    def watch(self, engine: Engine, poll_s: float, longest_s: float) -> StoreWatch:  # noqa: ARG002
        """See `TraceStore.watch`."""
        return Polling(poll_s)

    @property
    def _name(self) -> str:
        return url_of_file(Path(self.url.database or ""))


def _code(error: BaseException) -> list[str]:
    """Return SQLite's primary result code as its two words, e.g. `["SQLITE", "BUSY"]`."""
    return str(getattr(getattr(error, "orig", error), "sqlite_errorname", "")).split("_")[:2]


def _driver(conn: Connection) -> sqlite3.Connection:
    driver = conn.connection.driver_connection
    assert isinstance(driver, sqlite3.Connection)
    return driver
