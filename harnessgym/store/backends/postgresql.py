"""PostgreSQL, through psycopg 3.

A commit is on the server's disk before it returns. Writers of several processes work concurrently. A watch
hears of changes by LISTEN and NOTIFY: triggers (`store/views.py`) notify the channel of what processes wait
for.
"""

import asyncio
import contextlib
import time
from collections.abc import Iterator
from typing import Any, Final, Self

from sqlalchemy import URL, Connection, create_engine, event
from sqlalchemy.engine import Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import QueuePool

from harnessgym.errors import StoreError
from harnessgym.store.backend import (
    CHANNEL,
    LOCK_WAIT_S,
    PIPELINE,
    StoreWatch,
    Synchronous,
    seconds_in,
    shown,
)
from harnessgym.store.schema import WRITING

try:
    import psycopg
    from psycopg.types.string import StrDumper

    from harnessgym.store.backends.pipeline import PostgresqlPipeline
except ImportError:
    raise StoreError("PostgreSQL needs a driver: `pip install 'harnessgym-rl[postgres]'`.") from None

_RESTART_S = 15.0
"""How long to wait for a server that does not answer, unless the URL sets it."""
_SHORTEST_S = 2.0
"""The shortest time that the driver waits for a connection."""
_GATHER_S = 0.01
"""How long to collect further notifications after the first, so that one look at the store covers a burst."""
_MIGRATING: Final = 7_450_961
"""Key of the advisory lock that a migration holds."""
_SETTINGS = "SELECT set_config('lock_timeout', %s, false), set_config('synchronous_commit', %s, false)"
_SHORT_LOCK_WAIT = "SET LOCAL lock_timeout = '1s'"
"""How long the statements of a pipeline wait for a lock. A write that is locked out for longer runs again, in
its own savepoint, and waits `LOCK_WAIT_S` there."""
_STATEMENTS: Final = "harnessgym_statements"
"""Key of a connection's prepared statements in its `info`."""
_AWAY = ("08", "57P01", "57P02", "57P03")
"""SQLSTATEs of a lost connection, and of a server that is stopping or starting."""
_UNDONE = ("40001", "40P01")
"""Serialisation failure, deadlock."""
_PASSING = ("53", "55P03")
"""SQLSTATEs of insufficient resources, and of a lock that was not acquired in time."""
_LOCKED = "A row of {name} stayed locked ({message}). End the process that holds it, or try again."
_STRANGER = "The server refuses this user at {name} ({message}). Check user and password in the URL."
_NO_RIGHT = (
    "This user may not write to {name} ({message}). Grant it the rights, or give another user in the URL."
)
_EXPLANATIONS = {
    "53100": (
        "The disk of the database server at {name} is full ({message}). Free space: what was "
        "committed is safe."
    ),
    "53300": (
        "The server has no connection left for {name} ({message}). Raise its max_connections or run fewer "
        "processes."
    ),
    "55P03": _LOCKED,
    "40P01": _LOCKED,
    "40001": _LOCKED,
    "3D000": (
        "There is no database {name} ({message}). Run `createdb {database}` and `harnessgym store migrate "
        "{name}`."
    ),
    "28000": _STRANGER,
    "28P01": _STRANGER,
    "42501": _NO_RIGHT,
    "25006": _NO_RIGHT,
}
"""Error messages by SQLSTATE."""
_DRIVERS = ("postgresql", "postgresql+psycopg")


class PostgresqlBackend:
    """See `harnessgym.store.backend.Backend`.

    `synchronous` has no effect: committed data always survives power loss.
    """

    errors: tuple[type[Exception], ...] = (DBAPIError, psycopg.Error)

    def __init__(self, url: URL, synchronous: Synchronous) -> None:  # noqa: ARG002 see above
        """`?connect_timeout=5` in the URL: seconds to wait for a server that does not answer."""
        if url.drivername not in _DRIVERS:
            raise StoreError(
                f"The trace store reaches PostgreSQL through psycopg: write {_DRIVERS[1]}:// in {shown(url)}."
            )
        self.url = url.set(drivername=_DRIVERS[1])
        self.max_wait_s = max(_SHORTEST_S, seconds_in(url, "connect_timeout", _RESTART_S))

    def create_location(self) -> None:
        """See `Backend.create_location`. Does nothing: an administrator creates the database."""

    def refuse_absent(self) -> None:
        """See `Backend.refuse_absent`. Does nothing: the server itself refuses."""

    def engine(self) -> Engine:
        """See `Backend.engine`."""
        arguments = {"connect_timeout": round(self.max_wait_s), "application_name": "harnessgym"}
        engine = create_engine(
            self.url,
            connect_args=arguments,
            poolclass=QueuePool,
            pool_size=8,
            max_overflow=-1,
            pool_pre_ping=True,
        )

        @event.listens_for(engine, "connect")
        def _configure(dbapi: Any, _record: object) -> None:
            driver: psycopg.Connection[Any] = (
                dbapi.driver_connection if hasattr(dbapi, "driver_connection") else dbapi
            )
            # psycopg must not open transactions of its own: `_begin` opens them, with the isolation level.
            driver.autocommit = True
            driver.adapters.register_dumper(str, _TextDumper)
            # A server may be configured with synchronous_commit=off, which can lose commits. Every stricter
            # setting, such as remote_apply, is kept.
            row = driver.execute("SHOW synchronous_commit").fetchone()
            durable = "on" if row is None or row[0] == "off" else row[0]
            driver.execute(_SETTINGS, (f"{LOCK_WAIT_S:.0f}s", durable))

        @event.listens_for(engine, "before_cursor_execute")
        def _wait_for_pipeline(conn: Connection, *_statement: object) -> None:
            pipeline = conn.info.get(PIPELINE)
            if pipeline is not None:
                pipeline.wait()

        @event.listens_for(engine, "begin")
        def _begin(conn: Connection) -> None:
            # Reads see one snapshot. Writes run under READ COMMITTED: after waiting for a row lock they must
            # see what the other transaction committed, instead of failing to serialise.
            writing = all(conn.get_execution_options().get(name) == value for name, value in WRITING.items())
            conn.exec_driver_sql("BEGIN" if writing else "BEGIN ISOLATION LEVEL REPEATABLE READ")

        return engine

    @contextlib.contextmanager
    def alone(self, conn: Connection) -> Iterator[None]:
        """See `Backend.alone`."""
        conn.execution_options(**WRITING)
        try:
            conn.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_MIGRATING})")
            yield
        finally:
            conn.rollback()

    @contextlib.contextmanager
    def together(self, conn: Connection) -> Iterator[None]:
        """See `Backend.together`."""
        driver = conn.connection.driver_connection
        assert isinstance(driver, psycopg.Connection)
        # SQLAlchemy does not give the `info` of a connection that was lost.
        info = conn.info
        pipeline = info[PIPELINE] = PostgresqlPipeline(driver, info.setdefault(_STATEMENTS, {}))
        try:
            pipeline.send("SAVEPOINT together", ())
            pipeline.send(_SHORT_LOCK_WAIT, ())
            yield
            pipeline.end()
        except BaseException:
            # Raises instead if the connection is lost.
            pipeline.settle()
            driver.execute("ROLLBACK TO together")
            raise
        finally:
            info.pop(PIPELINE, None)

    def in_transaction(self, conn: Connection) -> bool:
        """See `Backend.in_transaction`."""
        if conn.invalidated:
            return False
        driver = conn.connection.driver_connection
        assert isinstance(driver, psycopg.Connection)
        return not driver.closed and driver.info.transaction_status != psycopg.pq.TransactionStatus.IDLE

    def away(self, error: BaseException) -> bool:
        """See `Backend.away`."""
        cause = _cause(error)
        if not isinstance(cause, psycopg.OperationalError):
            return False
        # An error of libpq while connecting has no SQLSTATE. It means that the server is away, unless its
        # text names a refusal that waiting does not cure.
        state = cause.sqlstate
        return state.startswith(_AWAY) if state else not _refused_for_good(str(cause))

    def undone(self, error: BaseException) -> bool:
        """See `Backend.undone`."""
        return getattr(_cause(error), "sqlstate", None) in _UNDONE

    def passing(self, error: BaseException) -> bool:
        """See `Backend.passing`."""
        state = getattr(_cause(error), "sqlstate", None) or ""
        return self.away(error) or state.startswith(_PASSING) or state in _UNDONE

    def explain(self, error: BaseException) -> str:
        """See `Backend.explain`."""
        cause = _cause(error)
        message = _server_message(cause)
        name = shown(self.url)
        state = getattr(cause, "sqlstate", None) or _state_in(str(cause)) or ""
        known = _EXPLANATIONS.get(state)
        if known is None and (self.away(error) or state.startswith(_AWAY)):
            known = "The database server does not answer at {name} ({message}). Start it, or correct the URL."
        known = known or "The trace database {name} refused: {message}"
        return known.format(name=name, message=message, database=self.url.database)

    def vacuum(self, conn: Connection, *, full: bool = False) -> None:
        """See `Backend.vacuum`. Marks space as free for later rows.

        `full` rewrites the tables one after another and locks each meanwhile.
        """
        driver = conn.connection.driver_connection
        assert isinstance(driver, psycopg.Connection)
        driver.execute("VACUUM (FULL, ANALYZE)" if full else "VACUUM (ANALYZE)")

    def size(self, conn: Connection) -> int:
        """See `Backend.size`."""
        return int(conn.exec_driver_sql("SELECT pg_database_size(current_database())").scalar_one())

    def watch(self, engine: Engine, poll_s: float, longest_s: float) -> StoreWatch:
        """See `TraceStore.watch`."""
        return Listening(engine, poll_s, longest_s)


class Listening:
    """A `StoreWatch` on a connection of its own. While the server is away it falls back to polling."""

    def __init__(self, engine: Engine, poll_s: float, longest_s: float) -> None:
        self._engine = engine
        self._poll_s = poll_s
        self._longest_s = longest_s
        self._driver: psycopg.Connection[tuple[object, ...]] | None = None
        self._connect()

    def wait(self) -> None:
        """See `StoreWatch`."""
        driver = self._driver
        if driver is None:
            time.sleep(self._poll_s)
            self._connect()
            return
        with self._forgets_lost():
            if any(True for _ in driver.notifies(timeout=self._longest_s, stop_after=1)):
                time.sleep(_GATHER_S)
                self._drain(driver)

    async def changed(self) -> None:
        """See `StoreWatch`."""
        driver = self._driver
        if driver is None:
            await asyncio.sleep(self._poll_s)
            await asyncio.to_thread(self._connect)
            return
        with self._forgets_lost():
            loop = asyncio.get_running_loop()
            heard = asyncio.Event()
            # psycopg's `notifies` would block the event loop. So the loop waits until the socket is readable,
            # and the notifications are read only then.
            socket = driver.fileno()
            loop.add_reader(socket, heard.set)
            try:
                async with asyncio.timeout(self._longest_s):
                    await heard.wait()
                # Data stays unread during the pause below: a registered reader would fire in a busy loop.
                loop.remove_reader(socket)
                await asyncio.sleep(_GATHER_S)
                self._drain(driver)
            except TimeoutError:
                pass
            finally:
                loop.remove_reader(socket)

    def close(self) -> None:
        """See `StoreWatch`."""
        driver = self._driver
        self._driver = None
        if driver is not None:
            driver.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _connect(self) -> None:
        """Open a connection configured like the engine's others, and detach it from the pool."""
        try:
            made = self._engine.raw_connection()
            driver = made.driver_connection
            made.detach()
            assert isinstance(driver, psycopg.Connection)
            self._driver = driver
            driver.execute(f"LISTEN {CHANNEL}")
        except (DBAPIError, psycopg.Error):
            # Not reported here: the caller reads the store next, and that read raises the explained error.
            self.close()

    @contextlib.contextmanager
    def _forgets_lost(self) -> Iterator[None]:
        """End the wait when the connection is lost: notifications may have been missed."""
        try:
            yield
        except psycopg.Error:
            self.close()

    @staticmethod
    def _drain(driver: "psycopg.Connection[tuple[object, ...]]") -> None:
        for _ in driver.notifies(timeout=0):
            pass


class _TextDumper(StrDumper):
    """Replaces NUL, which PostgreSQL's text type cannot hold, by U+FFFD.

    Only text for people can contain NUL. Whatever a program reads back does not.
    """

    def dump(self, obj: str) -> Any:
        """See `psycopg.abc.Dumper.dump`."""
        return super().dump(obj.replace("\0", "\ufffd") if "\0" in obj else obj)


def _cause(error: BaseException) -> BaseException:
    driver_error = getattr(error, "orig", None)
    return driver_error if isinstance(driver_error, BaseException) else error


def _server_message(cause: BaseException) -> str:
    """Return the server's message on one line."""
    diagnosis = cause.diag if isinstance(cause, psycopg.Error) else None
    parts = (diagnosis.message_primary, diagnosis.message_detail) if diagnosis is not None else ()
    return ": ".join(part for part in parts if part) or " ".join(str(cause).split())


def _state_in(text: str) -> str | None:
    """Return the SQLSTATE of a refused connection, derived from its message: libpq passes on nothing else."""
    words = {
        "3D000": ("database", "does not exist"),
        "28P01": ("password",),
        "28000": ("role",),
        "53300": ("too many clients",),
    }
    return next(
        (
            state
            for state, wanted in words.items()
            if "FATAL" in text and all(word in text for word in wanted)
        ),
        None,
    )


def _refused_for_good(text: str) -> bool:
    return _state_in(text) is not None or "pg_hba.conf" in text
