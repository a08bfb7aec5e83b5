"""Queries in plain SQL: one reading statement, on the trace database or on a SQLite file from elsewhere."""

import sqlite3
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, text

from harnessgym.errors import StoreError

_CHECK_EVERY = 10_000
"""Steps of SQLite's virtual machine between two checks of the deadline."""
Row = dict[str, Any]


def ask(conn: Connection, query: str, parameters: Mapping[str, Any]) -> list[Row]:
    """Return the rows of one statement, as dicts by column. Statements that would write are refused.

    The statement names its parameters as `:name`.
    """
    if conn.dialect.name != "sqlite":
        conn.exec_driver_sql("SET TRANSACTION READ ONLY")
        return _ask_postgresql(conn, query, parameters)
    # The connection belongs to a pool and may serve others later, so the pragma is always reset.
    conn.exec_driver_sql("PRAGMA query_only = ON")
    try:
        return [dict(row) for row in conn.execute(text(query), dict(parameters)).mappings()]
    finally:
        conn.exec_driver_sql("PRAGMA query_only = OFF")


def ask_file(path: Path, query: str, parameters: Mapping[str, Any], timeout_s: float = 10.0) -> list[Row]:
    """Like `ask`, on a SQLite file that is neither trusted nor changed.

    Raises `StoreError` if the query fails or does not end within `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    try:
        # The file may have been written by an agent. Its views and triggers must not call unsafe functions,
        # and a query on it may never end.
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as file:
            file.execute("PRAGMA trusted_schema = OFF")
            file.set_progress_handler(lambda: time.monotonic() > deadline, _CHECK_EVERY)
            file.row_factory = sqlite3.Row
            return [dict(row) for row in file.execute(query, dict(parameters))]
    except sqlite3.Error as error:
        raise StoreError(f"{path} cannot be asked {query!r}: {error}.") from error


def _ask_postgresql(conn: Connection, query: str, parameters: Mapping[str, Any]) -> list[Row]:
    """Return the rows of one statement in the connection's read-only transaction."""
    # Prepared, because the server then accepts only one statement. A second one could end the read-only
    # transaction.
    compiled = text(query).compile(dialect=conn.dialect)
    given = {name: parameters[name] for name in compiled.params if name in parameters}
    driver: Any = conn.connection.driver_connection
    cursor = driver.execute(str(compiled), given, prepare=True)
    if cursor.description is None:
        raise StoreError(f"{query!r} gives no rows: ask with SELECT.")
    names = [column.name for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor]
