"""The one way to the database: short reads, writes that one thread groups into transactions, and waiting for
others' writes.

Every process opens one `TraceStore`. Writes are functions of a connection; those that are waiting when the
writer becomes idle share one transaction, each in its own savepoint, so one that fails takes no other with
it. Only where the database gives up the transaction itself (a full disk, a server that went away) do all that
share it fail, and then none of them is stored. A write has returned only when its transaction is committed.
With SQLite in WAL mode that survives SIGKILL of any process; with `synchronous="FULL"`, and always with
PostgreSQL, also power loss.

A function may run again if the database undid it, and reads if nobody answered: it must do nothing but ask
the database. A server that restarts is waited for; writes that wait meanwhile are queued, and none that was
committed is lost. If it stays away all who wait hear so at one time, and who asks later at once.
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
from typing import Any, Self, TypeVar

import anyio
import anyio.to_thread
from anyio.lowlevel import RunVar
from sqlalchemy import Connection, RootTransaction

from harnessgym.errors import SchemaError, StoreError, StoreUnavailable
from harnessgym.store.backend import Synchronous, open_backend, shown
from harnessgym.store.schema import WRITING, head_revision, revision_of, upgrade
from harnessgym.store.watch import StoreWatch

__all__ = ["Synchronous", "TraceStore", "Work"]

T = TypeVar("T")
Work = Callable[[Connection], T]
_GROUP = 256
"""Writes that share a transaction at most: bounds how long the first of them waits."""
_PAUSE_S = 0.2
_TRIES = 5
"""How often a write is tried that the database undid because of what others did."""
_READERS = 16
"""Threads in which an event loop reads. They are the store's own: while a server is away all of them wait
for it, and what else the loop does in threads must go on."""
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
        self._outage = _Outage(self._backend.patience_s)
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
        """Open a database after migrating it to this code's schema; makes it if there is none (PostgreSQL:
        `createdb`).
        """
        store = cls(url, synchronous=synchronous)
        try:
            store._backend.make_place()
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
            found = store._connected_once(revision_of)
            if found != head_revision():
                raise SchemaError(
                    f"The trace database {shown(url)} has schema revision {found}, this code needs "
                    f"{head_revision()}. "
                    f"Stop its users and run `harnessgym store migrate {shown(url)}`."
                )
        except BaseException:
            store.close()
            raise
        return store

    @classmethod
    def outdated(cls, url: str) -> "TraceStore | None":
        """An existing database of another schema revision, as it is; None for any other.

        `runs`, `policies` and `policy_versions` have the same columns in every revision, and may be read.
        """
        store = cls(url)
        try:
            store._backend.refuse_absent()
            if store._connected_once(revision_of) not in (None, head_revision()):
                return store
        except StoreUnavailable:
            store.close()
            raise
        except StoreError:  # there is none yet
            pass
        store.close()
        return None

    def submit(self, work: Work[T]) -> "Future[T]":
        """Queue a write; the future resolves once it is committed. It cannot be cancelled: what was
        submitted is written.
        """
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()
        with self._closing:
            self._refuse_misuse()
            self._queue.put((work, future))
        return future

    def write(self, work: Work[T]) -> T:
        """Do a write and wait for its commit. Raises `StoreError` if the database refuses,
        `StoreUnavailable` for now.
        """
        return self.submit(work).result()

    async def awrite(self, work: Work[T]) -> T:
        """`write`, without blocking the event loop. A caller that is cancelled meanwhile does not take its
        write back.
        """
        return await asyncio.wrap_future(self.submit(work))

    def read(self, work: Work[T]) -> T:
        """Run a short read; all its statements see one state of the database. Raises `StoreError` if the
        database refuses.
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
        """`read`, without blocking the event loop. A caller that is cancelled meanwhile leaves the read to
        end by itself.
        """
        try:
            readers = _readers.get()
        except LookupError:
            readers = anyio.CapacityLimiter(_READERS)
            _readers.set(readers)
        return await anyio.to_thread.run_sync(self.read, work, limiter=readers)

    def watch(self, poll_s: float, longest_s: float = 1.0) -> StoreWatch:
        """Waits until others may have changed what work depends on; look at the store first after it was
        made.

        Where the database tells of changes (PostgreSQL) a wait ends with one, or after `longest_s`; elsewhere
        after `poll_s`.
        """
        self._refuse_misuse()
        return self._backend.watch(self._engine, poll_s, longest_s)

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
            raise StoreError(f"The trace store {shown(self.url)} is closed.")

    def _connected_once(self, work: Work[T]) -> T:
        """Work on a connection that is closed behind it."""
        with self._refusals():
            try:
                with self._engine.connect() as conn:
                    return work(conn)
            finally:
                self._engine.dispose()

    def _write_groups(self) -> None:
        while (first := self._queue.get()) is not None:
            group = [first]
            last = False
            while len(group) < _GROUP and not last and not self._queue.empty():
                item = self._queue.get()
                if item is None:
                    last = True
                else:
                    group.append(item)
            undone = self._write_group(group)
            for tries in range(_TRIES):  # one by one: what takes one lock at a time is in nobody's way
                undone = [
                    item for again in undone for item in self._write_group([again], last=tries == _TRIES - 1)
                ]
            if last:
                break
        self._disconnect()

    def _write_group(self, group: list["_Item"], *, last: bool = False) -> list["_Item"]:
        """One transaction; futures resolve after its commit, so that a result is never seen that could still
        be lost.

        Returns those that may be tried again, because others were in their way or the server went away before
        the commit; with `last` they fail instead.
        """
        done: list[tuple[Future[Any], Any]] = []
        failed: list[tuple[Future[Any], Exception]] = []
        again: list[_Item] = []
        begun = committing = False
        try:
            with self._refusals():
                transaction = self._begin()
                begun = True
                for work, future in group:
                    try:
                        done.append((future, self._write_one(transaction.connection, work)))
                    except _TransactionLostError:
                        raise
                    except _UndoneError as error:
                        failed += [(future, error)] if last else []
                        again += [] if last else [(work, future)]
                    except Exception as error:  # noqa: BLE001 the caller's own function failed: it is the caller who hears of it
                        failed.append((future, error))
                committing = True
                transaction.commit()
        except Exception as error:  # noqa: BLE001 nothing of the group is committed: every writer hears why
            self._disconnect()
            if begun and not committing and not last and self._went_away(error):
                return group
            self._fail(group, error, unknown=committing)
            return []
        for future, result in done:
            future.set_result(result)
        for future, failure in failed:
            future.set_exception(failure)
        return again

    def _fail(self, group: list["_Item"], error: Exception, *, unknown: bool) -> None:
        """Tell all of a group why it failed. Whether a server that vanished during the commit made it,
        nobody can know.
        """
        if isinstance(error, _TransactionLostError):
            error = self._refusal(error.__cause__ or error)
        elif unknown and self._went_away(error):
            error = StoreUnavailable(
                f"{error} It went away while it committed: look whether it was stored before writing it "
                "again."
            )
        for _, future in group:
            future.set_exception(error)

    def _went_away(self, error: Exception) -> bool:
        return error.__cause__ is not None and self._backend.away(error.__cause__)

    def _begin(self) -> RootTransaction:
        """The writer's transaction. Nothing of it has begun yet, so a server that is away may be waited
        for.
        """
        while True:
            try:
                if (
                    self._conn is None
                ):  # it keeps one: taking one from the pool costs as much as a small write
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
        """Run one write in a savepoint. Raises `_TransactionLostError` if the database rolled back more
        than that.
        """
        driver: Any = conn.connection.driver_connection
        driver.execute("SAVEPOINT one_write")
        try:
            result = work(conn)
            driver.execute("RELEASE one_write")
        except Exception as error:
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
        """Turns what the database refuses into a `StoreError` that says what to do."""
        try:
            yield
        except self._backend.errors as error:
            raise self._refusal(error) from error

    def _refusal(self, error: BaseException) -> StoreError:
        kind = StoreUnavailable if self._backend.passing(error) else StoreError
        return kind(self._backend.explain(error))


_Item = tuple[Work[Any], "Future[Any]"]


class _Outage:
    """Since when a server has not answered. Readers and the writer share it, so that all of them give up
    together.
    """

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._since = self._seen = -math.inf

    def ended(self) -> None:
        """It answers."""
        self._since = -math.inf

    def too_long(self) -> bool:
        """Whether it has been away for longer than anybody waits. One of which nobody heard for long
        begins anew.
        """
        now = time.monotonic()
        if self._since == -math.inf or now - self._seen > 4 * self._patience_s:
            self._since = now
        self._seen = now
        return now - self._since > self._patience_s


class _TransactionLostError(StoreError):
    """The database ended the whole transaction by itself: nothing of the group can be committed."""


class _UndoneError(StoreUnavailable):
    """The database undid one write because of what others did at the same time; done again it may go
    through.
    """
