"""Questions in plain SQL: one statement that reads, of the trace database or of a SQLite file that
somebody else wrote.
"""

import sqlite3
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, text

from harnessgym.errors import StoreError

_CHECK_EVERY = 10_000
"""Steps of SQLite's machine between two looks at the clock."""
Row = dict[str, Any]


def ask(conn: Connection, query: str, parameters: Mapping[str, Any]) -> list[Row]:
    """The rows that one statement gives, by column. What would write is refused. Names in it are written
    `:name`.
    """
    if conn.dialect.name != "sqlite":
        conn.exec_driver_sql("SET TRANSACTION READ ONLY")
        return _ask_postgresql(conn, query, parameters)
    conn.exec_driver_sql("PRAGMA query_only = ON")
    try:
        return [dict(row) for row in conn.execute(text(query), dict(parameters)).mappings()]
    finally:
        conn.exec_driver_sql("PRAGMA query_only = OFF")


def ask_file(path: Path, query: str, parameters: Mapping[str, Any], timeout_s: float = 10.0) -> list[Row]:
    """The same of a SQLite file, which is not trusted and not changed. Raises `StoreError` if it cannot be
    asked in time.
    """
    deadline = time.monotonic() + timeout_s
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as file:
            file.execute("PRAGMA trusted_schema = OFF")
            file.set_progress_handler(lambda: time.monotonic() > deadline, _CHECK_EVERY)
            file.row_factory = sqlite3.Row
            return [dict(row) for row in file.execute(query, dict(parameters))]
    except sqlite3.Error as error:
        raise StoreError(f"{path} cannot be asked {query!r}: {error}.") from error


def _ask_postgresql(conn: Connection, query: str, parameters: Mapping[str, Any]) -> list[Row]:
    """Prepared, because only then the server takes one statement: the second of two could end the
    read-only transaction.
    """
    compiled = text(query).compile(dialect=conn.dialect)
    given = {name: parameters[name] for name in compiled.params if name in parameters}
    driver: Any = conn.connection.driver_connection
    cursor = driver.execute(str(compiled), given, prepare=True)
    if cursor.description is None:
        raise StoreError(f"{query!r} gives no rows: ask with SELECT.")
    names = [column.name for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor]
