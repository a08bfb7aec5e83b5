"""Access to the database: short reads, writes that one thread groups into transactions, and watches.

Every process opens one `TraceStore`. Writes are functions that take a connection. Writes that are queued when
the writer becomes idle share one transaction, and one that fails does not affect the others. A group first
runs as a whole, on PostgreSQL in a `backend.StatementPipeline`; if any of it fails, it is undone and each
write runs again in a savepoint of its own. Only if the database ends the transaction itself (a full disk, a
server that went away) do all writes of the transaction fail, and then none of them is stored. A write
returns only after its transaction is committed. With SQLite in WAL mode a commit
survives SIGKILL of any process; with `synchronous="FULL"`, and always with PostgreSQL, also power loss.

A write may run again if it or another write of its group was undone, and a read if the server did not answer.
So these functions must do nothing but query the database. The store waits for a server that restarts. Writes
are queued meanwhile, and no committed write is lost. If the server stays away, all waiting callers fail at
the same time, and later callers fail at once.
"""

import asyncio
import contextlib
import math
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

import anyio
import anyio.to_thread
from anyio.lowlevel import RunVar
from sqlalchemy import Connection, RootTransaction

from harnessgym.errors import SchemaError, StoreError, StoreUnavailable
from harnessgym.store.backend import StoreWatch, Synchronous, open_backend, shown
from harnessgym.store.schema import WRITING, head_revision, revision_of, upgrade

__all__ = ["Synchronous", "TraceStore", "Work"]

T = TypeVar("T")
Work = Callable[[Connection], T]
_GROUP = 256
"""Maximum number of writes in a transaction. It bounds how long the first of them waits."""
_PAUSE_S = 0.2
_TRIES = 5
"""How often a write is retried that the database rolled back because of concurrent transactions."""
_READERS = 16
"""Number of threads in which an event loop reads. The store has its own limit: while a server is away, all of
them wait for it, and other work that the loop runs in threads must not be blocked."""
_readers: RunVar[anyio.CapacityLimiter] = RunVar("store readers")


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
        self._backend = open_backend(url, synchronous)
        self._engine = self._backend.engine()
        self._outage = _Outage(self._backend.max_wait_s)
        self._queue: queue.SimpleQueue[_Item | None] = queue.SimpleQueue()
        self._waiting: list[_Item] = []
        """Writes that are queued when the writer is woken next."""
        self._pid = os.getpid()
        self._closed = False
        self._closing = threading.Lock()
        self._conn: Connection | None = None
        """The writer's connection; None before the first write and after an error."""
        self._writer = threading.Thread(target=self._write_groups, name="store-writer", daemon=True)
        self._writer.start()

    @classmethod
    def create(cls, url: str, *, synchronous: Synchronous = "NORMAL") -> "TraceStore":
        """Migrate a database to this code's schema and open it.

        A SQLite file is created if it does not exist. A PostgreSQL database must exist (`createdb`).
        """
        store = cls(url, synchronous=synchronous)
        try:
            store._backend.create_location()
            store._connected_once(lambda conn: upgrade(conn, store._backend.alone))
        except BaseException:
            store.close()
            raise
        return store

    @classmethod
    def open(cls, url: str, *, synchronous: Synchronous = "NORMAL") -> "TraceStore":
        """Open an existing database. Raises `SchemaError` unless its schema is exactly this code's."""
        store = cls(url, synchronous=synchronous)
        try:
            store._backend.refuse_absent()
            revision = store._connected_once(revision_of)
            if revision != head_revision():
                raise SchemaError(
                    f"The trace database {shown(url)} has schema revision {revision}, this code needs "
                    f"{head_revision()}. Stop its users and run `harnessgym store migrate {shown(url)}`."
                )
        except BaseException:
            store.close()
            raise
        return store

    @classmethod
    def outdated(cls, url: str) -> "TraceStore | None":
        """Open an existing database if it has another schema revision, without migrating it; else None.

        `runs`, `policies` and `policy_versions` have the same columns in every revision and may be read.
        """
        store = cls(url)
        try:
            store._backend.refuse_absent()
            if store._connected_once(revision_of) not in (None, head_revision()):
                return store
        except StoreUnavailable:
            store.close()
            raise
        except StoreError:  # it does not exist yet
            pass
        store.close()
        return None

    def submit(self, work: Work[T], *, wake: bool = True) -> "Future[T]":
        """Queue a write. Returns a future that resolves once the write is committed.

        The future cannot be cancelled. Without `wake`, the write waits for the next one that wakes the
        writer, or for a call of `wake`, and shares its transaction.
        """
        future: Future[T] = Future()
        # A running future refuses to be cancelled. Otherwise the writer could store a write whose caller was
        # told that it was cancelled.
        future.set_running_or_notify_cancel()
        # Under the lock, no write can be queued behind the None with which `close` ends the writer: its
        # future would never resolve.
        with self._closing:
            self._refuse_misuse()
            self._waiting.append((work, future))
            if wake:
                self._put_waiting()
        return future

    def wake(self) -> None:
        """Have the writes written that wait for another one."""
        with self._closing:
            self._put_waiting()

    def _put_waiting(self) -> None:
        for item in self._waiting:
            self._queue.put(item)
        self._waiting.clear()

    def write(self, work: Work[T]) -> T:
        """Run a write and wait for its commit.

        Raises `StoreError` if the database refuses it, and `StoreUnavailable` if it may succeed later.
        """
        return self.submit(work).result()

    async def awrite(self, work: Work[T]) -> T:
        """Like `write`, without blocking the event loop. Cancelling the caller does not undo the write."""
        return await asyncio.wrap_future(self.submit(work))

    def read(self, work: Work[T]) -> T:
        """Run a short read, all of whose statements see one state of the database.

        Raises `StoreError` if the database refuses it.
        """
        self._refuse_misuse()
        with self._refusals():
            while True:
                try:
                    with self._engine.connect() as conn, conn.begin():
                        self._outage.ended()
                        return work(conn)
                except self._backend.errors as error:
                    if not self._backend.away(error) or self._outage.too_long():
                        raise
                time.sleep(_PAUSE_S)

    async def aread(self, work: Work[T]) -> T:
        """Like `read`, without blocking the event loop. Cancelling the caller does not stop the read."""
        try:
            readers = _readers.get()
        except LookupError:
            readers = anyio.CapacityLimiter(_READERS)
            _readers.set(readers)
        return await anyio.to_thread.run_sync(self.read, work, limiter=readers)

    def watch(self, poll_s: float, longest_s: float = 1.0) -> StoreWatch:
        """Return a watch for changes that work depends on. Look at the store once after creating it.

        If the database can notify (PostgreSQL), a wait ends at a change or after `longest_s`; otherwise it
        ends after `poll_s`.
        """
        self._refuse_misuse()
        return self._backend.watch(self._engine, poll_s, longest_s)

    def close(self) -> None:
        """Commit the queued writes and close. Safe to call twice. Has no effect in a forked child."""
        # A forked child has no writer thread, and the connections that it inherited are the parent's: closing
        # them would end the parent's sessions.
        if os.getpid() != self._pid:
            return
        with self._closing:
            if self._closed:
                return
            self._closed = True
            self._put_waiting()
            self._queue.put(None)
        self._writer.join()
        self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _refuse_misuse(self) -> None:
        if os.getpid() != self._pid:
            raise StoreError("A trace store cannot be used after a fork: open a new one in the child.")
        if self._closed:
            raise StoreError(f"The trace store {shown(self.url)} is closed.")

    def _connected_once(self, work: Work[T]) -> T:
        """Run work on a connection that is closed afterwards."""
        with self._refusals():
            try:
                with self._engine.connect() as conn:
                    return work(conn)
            finally:
                self._engine.dispose()

    def _write_groups(self) -> None:
        """Write queued items in groups until the None that `close` queues."""
        while (first := self._queue.get()) is not None:
            group = [first]
            last = False
            while len(group) < _GROUP and not last and not self._queue.empty():
                item = self._queue.get()
                if item is None:
                    last = True
                else:
                    group.append(item)
            # Retry one by one: a transaction of a single write holds few locks, so it is unlikely to run into
            # the same conflict again.
            undone = self._write_group(group)
            for tries in range(_TRIES):
                undone = [
                    item for again in undone for item in self._write_group([again], last=tries == _TRIES - 1)
                ]
            if last:
                break
        self._disconnect()

    def _write_group(self, group: list["_Item"], *, last: bool = False) -> list["_Item"]:
        """Write a group in one transaction.

        Returns the items to retry: those that conflicted with other transactions, or all of them if the
        server went away before the commit. With `last`, these items fail instead.
        """
        # Futures resolve only after the commit. A caller that saw its result earlier could act on a write
        # that is still lost, such as a harness acting on an answer that the store does not have.
        outcomes = _Outcomes()
        begun = committing = False
        try:
            with self._refusals():
                transaction = self._begin()
                begun = True
                results = self._write_together(transaction.connection, group)
                if results is None:
                    self._write_apart(transaction.connection, group, outcomes, last=last)
                else:
                    outcomes.done += zip((future for _, future in group), results, strict=True)
                committing = True
                transaction.commit()
        except Exception as error:  # noqa: BLE001 the transaction failed: passed to every caller
            self._disconnect()
            # Retrying is safe only before COMMIT was sent. After that the server may have committed, and a
            # second run would write everything twice. Before BEGIN, `_begin` has waited long enough already.
            if begun and not committing and not last and self._went_away(error):
                return group
            self._fail(group, error, unknown=committing)
            return []
        for future, result in outcomes.done:
            future.set_result(result)
        for future, failure in outcomes.failed:
            future.set_exception(failure)
        return outcomes.again

    def _write_together(self, conn: Connection, group: list["_Item"]) -> list[Any] | None:
        """Run a group's writes as a whole. Returns None, with nothing written, if any of them failed."""
        if len(group) == 1:
            return None
        try:
            with self._backend.together(conn):
                return [work(conn) for work, _ in group]
        except Exception as error:
            if not self._backend.in_transaction(conn):
                raise _TransactionLostError(self._backend.explain(error)) from error
            return None

    def _write_apart(self, conn: Connection, group: list["_Item"], out: "_Outcomes", *, last: bool) -> None:
        """Run each write of a group in its own savepoint."""
        for work, future in group:
            try:
                out.done.append((future, self._write_one(conn, work)))
            except _TransactionLostError:
                raise
            except _UndoneError as error:
                out.failed += [(future, error)] if last else []
                out.again += [] if last else [(work, future)]
            # Raised by the caller's function: passed to the caller.
            except Exception as error:  # noqa: BLE001
                out.failed.append((future, error))

    def _fail(self, group: list["_Item"], error: Exception, *, unknown: bool) -> None:
        """Fail all futures of a group.

        `unknown`: the error came during the commit. If the server vanished then, the message says that the
        group may have been stored.
        """
        if isinstance(error, _TransactionLostError):
            error = self._refusal(error.__cause__ or error)
        elif unknown and self._went_away(error):
            error = StoreUnavailable(
                f"{error} The connection was lost during the commit: check whether the write was stored "
                "before you repeat it."
            )
        for _, future in group:
            future.set_exception(error)

    def _went_away(self, error: Exception) -> bool:
        return error.__cause__ is not None and self._backend.away(error.__cause__)

    def _begin(self) -> RootTransaction:
        """Begin the writer's transaction. Waits for a server that is away."""
        while True:
            try:
                # The writer keeps its connection: getting one from the pool costs as much as a small write.
                if self._conn is None:
                    self._conn = self._engine.connect().execution_options(**WRITING)
                transaction = self._conn.begin()
            except self._backend.errors as error:
                self._disconnect()
                if not self._backend.away(error) or self._outage.too_long():
                    raise
                time.sleep(_PAUSE_S)
            else:
                self._outage.ended()
                return transaction

    def _disconnect(self) -> None:
        conn = self._conn
        self._conn = None
        if conn is not None:
            with contextlib.suppress(*self._backend.errors):
                conn.close()

    def _write_one(self, conn: Connection, work: Work[T]) -> T:
        """Run one write in a savepoint.

        Raises `_TransactionLostError` if the database rolled back the whole transaction, and `_UndoneError`
        if it rolled back this write because of concurrent transactions.
        """
        # Savepoints go directly to the driver, because SQLAlchemy's execution of a statement costs more than
        # the database's.
        driver: Any = conn.connection.driver_connection
        driver.execute("SAVEPOINT one_write")
        try:
            result = work(conn)
            driver.execute("RELEASE one_write")
        except Exception as error:
            # SQLite rolls everything back by itself when the disk is full, and a lost connection takes the
            # transaction with it. Continuing would run the next writes outside a transaction.
            if not self._backend.in_transaction(conn):
                raise _TransactionLostError(self._backend.explain(error)) from error
            driver.execute("ROLLBACK TO one_write")
            driver.execute("RELEASE one_write")
            if isinstance(error, self._backend.errors):
                if self._backend.undone(error):
                    raise _UndoneError(self._backend.explain(error)) from error
                raise self._refusal(error) from error
            raise
        return result

    @contextlib.contextmanager
    def _refusals(self) -> Iterator[None]:
        """Turn errors of the database into a `StoreError` that says what to do."""
        try:
            yield
        except self._backend.errors as error:
            raise self._refusal(error) from error

    def _refusal(self, error: BaseException) -> StoreError:
        kind = StoreUnavailable if self._backend.passing(error) else StoreError
        return kind(self._backend.explain(error))


_Item = tuple[Work[Any], "Future[Any]"]


@dataclass
class _Outcomes:
    """What became of the writes of a group, once it is committed."""

    done: list[tuple["Future[Any]", Any]] = field(default_factory=list)
    failed: list[tuple["Future[Any]", Exception]] = field(default_factory=list)
    again: list[_Item] = field(default_factory=list)


class _Outage:
    """Tracks how long a server has not answered.

    Readers and the writer share one, so that all of them give up at the same time.
    """

    def __init__(self, max_wait_s: float) -> None:
        self._max_wait_s = max_wait_s
        self._since = self._seen = -math.inf

    def ended(self) -> None:
        """Record that the server answers."""
        self._since = -math.inf

    def too_long(self) -> bool:
        """Record a failed attempt. Returns whether the server has been away for longer than `max_wait_s`."""
        now = time.monotonic()
        # If nobody has tried for a long time, the server may have been back in between. Count a new outage,
        # so that the caller waits instead of failing at once.
        if self._since == -math.inf or now - self._seen > 4 * self._max_wait_s:
            self._since = now
        self._seen = now
        return now - self._since > self._max_wait_s


class _TransactionLostError(StoreError):
    """The database ended the whole transaction by itself: nothing of the group can be committed."""


class _UndoneError(StoreUnavailable):
    """The database rolled back one write because of concurrent transactions. A retry may succeed."""
