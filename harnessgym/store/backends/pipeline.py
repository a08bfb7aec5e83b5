"""Statements that are sent to PostgreSQL without waiting for the result of each.

A round trip costs as much as the statement itself, and the writer then waits for the interpreter's lock too.
In libpq's pipeline mode the server works while the next statements are made. psycopg has this mode, but its
cursors cost as much as the round trips. So the statements go to libpq directly: prepared on the server, with
parameters that are encoded here.
"""

import itertools
import json
import select
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import psycopg
from psycopg import pq
from psycopg.errors import error_from_result
from psycopg.types.json import Json

_SENT_TOGETHER = 8
"""How many statements are passed on to the server at a time."""
_numbers = itertools.count()
"""Numbers that make the names of prepared statements unique in a connection."""


class PostgresqlPipeline:
    """See `harnessgym.store.backend.StatementPipeline`."""

    def __init__(self, driver: "psycopg.Connection[Any]", names: dict[str, bytes]) -> None:
        """`names`: the connection's prepared statements by their SQL, to which this adds."""
        self._driver = driver
        self._pgconn = driver.pgconn
        self._names = names
        self._checks: list[Exception | None] = []
        """For each statement that was sent: what to raise if it wrote no row."""
        self._unconfirmed: list[str] = []
        """Statements whose preparation was sent, but not confirmed."""
        self._failure: Exception | None = None

    def send(self, sql: str, row: Sequence[Any], otherwise: Exception | None = None) -> None:
        """See `StatementPipeline.send`. Raises `TypeError` for a value of a type that it cannot encode."""
        if self._failure is not None:
            raise self._failure
        try:
            if not self._pgconn.pipeline_status:
                self._pgconn.enter_pipeline_mode()
                self._pgconn.nonblocking = 1
            name = self._names.get(sql) or self._prepare(sql)
            values = [None if value is None else _encoded(value) for value in row]
            formats = [_BINARY if type(value) is bytes else _TEXT for value in row]
            self._pgconn.send_query_prepared(name, values, formats)
            self._checks.append(otherwise)
            if len(self._checks) % _SENT_TOGETHER == 0:
                self._pgconn.flush()
        except Exception as error:
            # Kept, because a caller that catches it must not have the rest committed without it.
            self._failure = error
            raise

    def wait(self) -> None:
        """See `StatementPipeline.wait`."""
        self.settle()
        if self._failure is not None:
            raise self._failure

    def settle(self) -> None:
        """Receive all results, so that the connection takes ordinary statements again. Raises nothing."""
        if not self._pgconn.pipeline_status:
            return
        try:
            self._pgconn.pipeline_sync()
            self._receive()
            self._pgconn.nonblocking = 0
            self._pgconn.exit_pipeline_mode()
        except psycopg.Error as error:
            # The connection is lost, or no longer in step with the server.
            self._failure = self._failure or error
            self._driver.close()
        if self._failure is not None:
            # Some of these may not exist on the server: they get new names.
            for sql in self._unconfirmed:
                self._names.pop(sql, None)
        self._checks.clear()
        self._unconfirmed.clear()

    def end(self) -> None:
        """Wait for all results. Raises the first failure, even if a caller of `wait` has caught it."""
        self.wait()
        # A function may have caught an error of a statement of its own. Its transaction can only be rolled
        # back, and COMMIT would do so without an error.
        if self._driver.info.transaction_status != pq.TransactionStatus.INTRANS:
            raise psycopg.errors.InFailedSqlTransaction("A statement of the transaction failed.")

    def _prepare(self, sql: str) -> bytes:
        name = self._names[sql] = f"harnessgym_{next(_numbers)}".encode()
        self._unconfirmed.append(sql)
        self._pgconn.send_prepare(name, sql.encode())
        self._checks.append(None)
        return name

    def _receive(self) -> None:
        """Read the results of everything that was sent, and keep the first failure."""
        checks = iter(self._checks)
        for result in self._results():
            otherwise = next(checks, None)
            if self._failure is not None:
                continue
            if result.status == pq.ExecStatus.FATAL_ERROR:
                self._failure = error_from_result(result)
            elif otherwise is not None and not result.command_tuples:
                self._failure = otherwise

    def _results(self) -> Iterator[pq.abc.PGresult]:
        """Yield the result of each statement, up to the synchronisation."""
        # libpq's own waiting would hold the interpreter's lock.
        pgconn = self._pgconn
        poll = select.poll()
        unsent = pgconn.flush()
        ended = False
        while True:
            while not pgconn.is_busy():
                result = pgconn.get_result()
                if result is None:
                    # None ends the results of each statement. Twice in a row: there are no others.
                    if ended:
                        raise psycopg.OperationalError("The connection was lost.")
                    ended = True
                    continue
                ended = False
                if result.status == pq.ExecStatus.PIPELINE_SYNC:
                    return
                yield result
            poll.register(pgconn.socket, select.POLLIN | (select.POLLOUT if unsent else 0))
            poll.poll()
            pgconn.consume_input()
            unsent = pgconn.flush()


_TEXT, _BINARY = pq.Format.TEXT, pq.Format.BINARY


def _encoded(value: Any) -> bytes:
    encode = _WIRE.get(type(value))
    if encode is None:
        raise TypeError(f"A pipeline cannot send a {type(value).__name__}.")
    return encode(value)


def _text(value: str) -> bytes:
    # PostgreSQL's text type cannot hold NUL. Only text for people can contain it.
    return value.replace("\0", "\ufffd").encode() if "\0" in value else value.encode()


_WIRE: dict[type, Callable[[Any], bytes]] = {
    str: _text,
    int: b"%d".__mod__,
    float: lambda value: repr(value).encode(),
    bytes: bytes,
    bool: lambda value: b"t" if value else b"f",
    Json: lambda value: json.dumps(value.obj).encode(),
}
"""How a value of each type goes over the wire."""
