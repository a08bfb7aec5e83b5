"""The one way to the database: short reads, and writes that one thread groups into transactions.

Every process opens one `TraceStore`. Writes are functions of a connection; those that are waiting when the writer becomes idle
share one `BEGIN IMMEDIATE` transaction, each in its own savepoint, so one that fails takes no other with it. Only where the
database gives up the transaction itself (a full disk) do all that share it fail, and then none of them is stored. A write has
returned only when its transaction is committed. With SQLite in WAL mode that survives SIGKILL of any process; with
`synchronous="FULL"` also power loss.
"""

import asyncio
import contextlib
import os
import queue
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

from sqlalchemy import Connection, create_engine, event
from sqlalchemy.engine import Engine, make_url
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import QueuePool

from harnessgym.errors import SchemaError, StoreError
from harnessgym.store.schema import WRITING, head_revision, revision_of, upgrade

Synchronous = Literal["NORMAL", "FULL"]
T = TypeVar("T")
Work = Callable[[Connection], T]
_BUSY_S = 30.0
_GROUP = 256
"""Writes that share a transaction at most: bounds how long the first of them waits."""


class TraceStore:
    """A trace database, opened by one process.

    ```python
    with TraceStore.create("sqlite:///runs/demo/traces.db") as store:
        run_id = store.write(lambda conn: runs.add(conn, "demo", {}, code_version="1", status="training"))
        print(store.read(lambda conn: rollouts.rollout_states(conn, run_id)))
    ```
    """

    def __init__(self, url: str, *, synchronous: Synchronous = "NORMAL") -> None:
        self.url = url
        self._engine = _engine(url, synchronous)
        self._queue: queue.SimpleQueue[_Item | None] = queue.SimpleQueue()
        self._pid = os.getpid()
        self._closed = False
        self._closing = threading.Lock()
        self._conn: Connection | None = None
        """The writer's connection, while it is sound."""
        self._writer = threading.Thread(target=self._write_groups, name="store-writer", daemon=True)
        self._writer.start()

    @classmethod
    def create(cls, url: str, *, synchronous: Synchronous = "NORMAL") -> "TraceStore":
        """Open a database after migrating it to this code's schema; makes it if there is none."""
        path = make_url(url).database
        if path:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
        engine = _engine(url, synchronous)
        try:
            with _refusals(url), engine.connect() as conn:
                upgrade(conn)
        finally:
            engine.dispose()
        return cls(url, synchronous=synchronous)

    @classmethod
    def open(cls, url: str, *, synchronous: Synchronous = "NORMAL") -> "TraceStore":
        """Open an existing database. Raises `SchemaError` unless its schema is exactly this code's."""
        path = make_url(url).database
        if path and not Path(path).is_file():
            raise StoreError(f"There is no trace database at {path}. Run `harnessgym store migrate {url}` to make one.")
        engine = _engine(url, synchronous)
        try:
            with _refusals(url), engine.connect() as conn:
                found = revision_of(conn)
        finally:
            engine.dispose()
        if found != head_revision():
            raise SchemaError(
                f"The trace database {url} has schema revision {found}, this code needs {head_revision()}. "
                f"Stop its users and run `harnessgym store migrate {url}`."
            )
        return cls(url, synchronous=synchronous)

    def submit(self, work: Work[T]) -> "Future[T]":
        """Queue a write; the future resolves once it is committed. It cannot be cancelled: what was submitted is written."""
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()
        with self._closing:
            self._refuse_misuse()
            self._queue.put((work, future))
        return future

    def write(self, work: Work[T]) -> T:
        """Do a write and wait for its commit. Raises `StoreError` if the database refuses."""
        return self.submit(work).result()

    async def awrite(self, work: Work[T]) -> T:
        """`write`, without blocking the event loop. A caller that is cancelled meanwhile does not take its write back."""
        return await asyncio.wrap_future(self.submit(work))

    def read(self, work: Work[T]) -> T:
        """Run a short read; all its statements see one state of the database. Raises `StoreError` if the database refuses."""
        self._refuse_misuse()
        with _refusals(self.url), self._engine.connect() as conn, conn.begin():
            return work(conn)

    def close(self) -> None:
        """Commit what is queued and close. Safe to call twice, and without effect in a forked child."""
        if os.getpid() != self._pid:
            return
        with self._closing:
            if self._closed:
                return
            self._closed = True
            self._queue.put(None)
        self._writer.join()
        self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _refuse_misuse(self) -> None:
        if os.getpid() != self._pid:
            raise StoreError("A trace store does not cross a fork: open one in the child.")
        if self._closed:
            raise StoreError(f"The trace store {self.url} is closed.")

    def _write_groups(self) -> None:
        while (first := self._queue.get()) is not None:
            group, last = [first], False
            while len(group) < _GROUP and not last and not self._queue.empty():
                item = self._queue.get()
                if item is None:
                    last = True
                else:
                    group.append(item)
            self._write_group(group)
            if last:
                break
        self._disconnect()

    def _write_group(self, group: list["_Item"]) -> None:
        """One transaction; futures resolve after its commit, so that a result is never seen that could still be lost."""
        done: list[tuple[Future[Any], Any]] = []
        failed: list[tuple[Future[Any], Exception]] = []
        try:
            with _refusals(self.url), self._connect().begin() as transaction:
                for work, future in group:
                    try:
                        done.append((future, self._write_one(transaction.connection, work)))
                    except _TransactionLostError:
                        raise
                    except Exception as error:  # noqa: BLE001 the caller's own function failed: it is the caller who hears of it
                        failed.append((future, error))
        except Exception as error:  # noqa: BLE001 nothing of the group is committed: every writer hears why
            self._disconnect()
            problem = StoreError(str(error)) if isinstance(error, _TransactionLostError) else error
            for _, future in group:
                future.set_exception(problem)
            return
        for future, result in done:
            future.set_result(result)
        for future, failure in failed:
            future.set_exception(failure)

    def _connect(self) -> Connection:
        """The writer's connection; it keeps one, because taking one from the pool costs as much as a small write."""
        if self._conn is None:
            self._conn = self._engine.connect().execution_options(**WRITING)
        return self._conn

    def _disconnect(self) -> None:
        conn, self._conn = self._conn, None
        if conn is not None:
            with contextlib.suppress(DBAPIError, sqlite3.Error):
                conn.close()

    def _write_one(self, conn: Connection, work: Work[T]) -> T:
        """Run one write in a savepoint. Raises `_TransactionLostError` if SQLite rolled back more than that."""
        driver = _driver(conn)
        driver.execute("SAVEPOINT one_write")
        try:
            result = work(conn)
            driver.execute("RELEASE one_write")
        except Exception as error:
            if not driver.in_transaction:
                raise _TransactionLostError(_explain(self.url, error)) from error
            driver.execute("ROLLBACK TO one_write")
            driver.execute("RELEASE one_write")
            if isinstance(error, DBAPIError | sqlite3.Error):
                raise StoreError(_explain(self.url, error)) from error
            raise
        return result


_Item = tuple[Work[Any], "Future[Any]"]


class _TransactionLostError(StoreError):
    """SQLite ended the whole transaction by itself: nothing of the group can be committed."""


def _engine(url: str, synchronous: Synchronous) -> Engine:
    if make_url(url).get_backend_name() != "sqlite":
        raise StoreError(f"The trace store cannot use {url!r}: give a `sqlite:///path` URL.")
    arguments = {"timeout": _BUSY_S, "check_same_thread": False}
    engine = create_engine(url, connect_args=arguments, poolclass=QueuePool, pool_size=8, max_overflow=-1)

    @event.listens_for(engine, "connect")
    def _configure(dbapi: sqlite3.Connection, _record: object) -> None:
        dbapi.isolation_level = None
        for pragma in ("journal_mode=WAL", f"synchronous={synchronous}", "foreign_keys=ON", "temp_store=MEMORY"):
            dbapi.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def _begin(conn: Connection) -> None:
        writing = all(conn.get_execution_options().get(name) == value for name, value in WRITING.items())
        conn.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN")

    return engine


def _driver(conn: Connection) -> sqlite3.Connection:
    """SQLite itself: it knows whether the transaction that SQLAlchemy believes in is still there."""
    driver = conn.connection.driver_connection
    assert isinstance(driver, sqlite3.Connection)
    return driver


@contextlib.contextmanager
def _refusals(url: str) -> Iterator[None]:
    """Turns what the database refuses into a `StoreError` that says what to do."""
    try:
        yield
    except (DBAPIError, sqlite3.Error) as error:
        raise StoreError(_explain(url, error)) from error


def _explain(url: str, error: BaseException) -> str:
    cause = getattr(error, "orig", error)
    match str(getattr(cause, "sqlite_errorname", "")).split("_")[:2]:
        case ["SQLITE", "FULL"]:
            return f"The disk that holds {url} is full ({cause}). Free space and go on: what was committed is safe."
        case ["SQLITE", "READONLY" | "CANTOPEN" | "PERM"]:
            return f"The trace database {url} cannot be opened for writing ({cause}). Check the folder and its permissions."
        case ["SQLITE", "BUSY" | "LOCKED"]:
            return f"The trace database {url} stayed locked for {_BUSY_S:.0f} s. End the process that holds it."
        case ["SQLITE", "CORRUPT" | "NOTADB"]:
            return f"{url} is damaged or no trace database ({cause}). Restore it from a copy, or give another file."
        case _:
            return f"The trace database {url} refused: {cause}"
