"""The one way to the database: short reads, and writes that one thread groups into transactions.

Every process opens one `TraceStore`. Writes are functions of a connection; those that are waiting when the writer becomes idle
share one `BEGIN IMMEDIATE` transaction, each in its own savepoint, so one that fails takes no other with it. A write has
returned only when its transaction is committed. With SQLite in WAL mode that survives SIGKILL of any process; with
`synchronous="FULL"` also power loss.
"""

import asyncio
import os
import queue
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Literal, TypeVar

from sqlalchemy import Connection, create_engine, event
from sqlalchemy.engine import Engine, make_url
from sqlalchemy.exc import DBAPIError

from harnessgym.errors import SchemaError, StoreError
from harnessgym.store.schema import head_revision, revision_of, upgrade

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
        store.write(lambda conn: rollouts.add_run(conn, name="demo", config={}))
        print(store.read(lambda conn: rollouts.count_by_status(conn, run_id)))
    ```
    """

    def __init__(self, url: str, *, synchronous: Synchronous = "NORMAL") -> None:
        self.url = url
        self._engine = _engine(url, synchronous)
        self._queue: queue.SimpleQueue[tuple[Work[Any], Future[Any]] | None] = queue.SimpleQueue()
        self._pid = os.getpid()
        self._closed = False
        self._reading = threading.local()
        self._readers: list[Connection] = []
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
            with engine.connect() as conn:
                upgrade(conn)
        except DBAPIError as error:
            raise StoreError(_explain(url, error)) from error
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
            with engine.connect() as conn:
                found = revision_of(conn)
        except DBAPIError as error:
            raise StoreError(_explain(url, error)) from error
        finally:
            engine.dispose()
        if found != head_revision():
            raise SchemaError(
                f"The trace database {url} has schema revision {found}, this code needs {head_revision()}. "
                f"Stop its users and run `harnessgym store migrate {url}`."
            )
        return cls(url, synchronous=synchronous)

    def submit(self, work: Work[T]) -> "Future[T]":
        """Queue a write; the future resolves once it is committed."""
        if self._closed:
            raise StoreError(f"The trace store {self.url} is closed.")
        if os.getpid() != self._pid:
            raise StoreError("A trace store does not cross a fork: open one in the child.")
        future: Future[T] = Future()
        self._queue.put((work, future))
        return future

    def write(self, work: Work[T]) -> T:
        """Do a write and wait for its commit. Raises `StoreError` if the database refuses."""
        return self.submit(work).result()

    async def awrite(self, work: Work[T]) -> T:
        """`write`, without blocking the event loop."""
        return await asyncio.wrap_future(self.submit(work))

    def read(self, work: Work[T]) -> T:
        """Run a short read on this thread's own connection."""
        conn: Connection | None = getattr(self._reading, "conn", None)
        try:
            if conn is None:
                conn = self._reading.conn = self._engine.connect()
                self._readers.append(conn)
            with conn.begin():
                return work(conn)
        except DBAPIError as error:
            raise StoreError(_explain(self.url, error)) from error

    def close(self) -> None:
        """Commit what is queued and close. Safe to call twice."""
        if not self._closed:
            self._closed = True
            self._queue.put(None)
            self._writer.join()
            for conn in self._readers:
                conn.close()
            self._engine.dispose()

    def __enter__(self) -> "TraceStore":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _write_groups(self) -> None:
        while (first := self._queue.get()) is not None:
            group, last = [first], False
            while len(group) < _GROUP and not self._queue.empty():
                item = self._queue.get()
                if item is None:
                    last = True
                    break
                group.append(item)
            self._write_group(group)
            if last:
                return

    def _write_group(self, group: list[tuple[Work[Any], "Future[Any]"]]) -> None:
        """One transaction; futures resolve after its commit, so that a result is never seen that could still be lost."""
        done: list[tuple[Future[Any], Any]] = []
        failed: list[tuple[Future[Any], BaseException]] = []
        try:
            with self._engine.connect().execution_options(harnessgym_write=True) as conn, conn.begin():
                for work, future in group:
                    try:
                        with conn.begin_nested():
                            done.append((future, work(conn)))
                    except DBAPIError as error:
                        if not conn.in_transaction():
                            raise
                        failed.append((future, StoreError(_explain(self.url, error))))
                    except Exception as error:  # the caller's own function failed: it is the caller who must hear of it
                        failed.append((future, error))
        except Exception as error:  # nothing of the group is committed: every writer must hear why
            problem = StoreError(_explain(self.url, error)) if isinstance(error, DBAPIError) else error
            for _, future in group:
                future.set_exception(problem)
            return
        for future, result in done:
            future.set_result(result)
        for future, error in failed:
            future.set_exception(error)


def _engine(url: str, synchronous: Synchronous) -> Engine:
    if make_url(url).get_backend_name() != "sqlite":
        raise StoreError(f"The trace store cannot use {url!r}: give a `sqlite:///path` URL.")
    engine = create_engine(url, connect_args={"timeout": _BUSY_S, "check_same_thread": False}, pool_size=4, max_overflow=12)

    @event.listens_for(engine, "connect")
    def _configure(dbapi: sqlite3.Connection, _record: object) -> None:
        dbapi.isolation_level = None
        for pragma in ("journal_mode=WAL", f"synchronous={synchronous}", "foreign_keys=ON", "temp_store=MEMORY"):
            dbapi.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def _begin(conn: Connection) -> None:
        write = conn.get_execution_options().get("harnessgym_write", False)
        conn.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")

    return engine


def _explain(url: str, error: BaseException) -> str:
    cause = str(getattr(error, "orig", error))
    if "full" in cause:
        return f"The disk that holds {url} is full ({cause}). Free space and start again: what was committed is safe."
    if "readonly" in cause or "unable to open" in cause:
        return f"The trace database {url} cannot be opened for writing ({cause}). Check the folder and its permissions."
    if "locked" in cause:
        return f"The trace database {url} stayed locked for {_BUSY_S:.0f} s. Another process holds a long transaction; end it."
    return f"The trace database {url} refused: {cause}"
