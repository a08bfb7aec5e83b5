"""Statements of the hot path: built and compiled once, run by the driver.

A call is several statements, and for each of them SQLAlchemy's execution costs more than SQLite does. The SQL and the
conversion of values are still SQLAlchemy's, from the same tables; only the way to the driver is short. What the database
refuses comes as the driver's own error, which the trace store explains like any other.
"""

import sqlite3
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

from sqlalchemy import Connection
from sqlalchemy.dialects import sqlite
from sqlalchemy.sql.dml import UpdateBase

_DIALECT = sqlite.dialect(paramstyle="qmark")


class Prepared:
    """One statement.

    ```python
    insert_row = Prepared(insert(table), ("id", "body"))
    insert_row.run(conn, {"id": 1, "body": "text"})
    ```
    """

    def __init__(self, statement: UpdateBase, columns: Iterable[str] = ()) -> None:
        """`columns` are those that an insert gives; an update names its own."""
        compiled = statement.compile(dialect=_DIALECT, column_keys=list(columns) or None)
        self._sql = str(compiled)
        binds: Mapping[str, Any] = compiled.binds
        names = cast("Iterable[str]", compiled.positiontup)
        self._values = [(name, _converter(binds[name].type), binds[name].value) for name in names]

    def run(self, conn: Connection, values: Mapping[str, Any]) -> None:
        """Execute it once, inside the connection's transaction."""
        _driver(conn).execute(self._sql, self._row(values))

    def run_many(self, conn: Connection, rows: Iterable[Mapping[str, Any]]) -> None:
        """Execute it for every row."""
        _driver(conn).executemany(self._sql, [self._row(values) for values in rows])

    def _row(self, values: Mapping[str, Any]) -> list[Any]:
        row = []
        for name, convert, default in self._values:
            value = values.get(name, default)
            row.append(value if convert is None else convert(value))
        return row


def _converter(kind: Any) -> Callable[[Any], Any] | None:
    """From a Python value to what the driver takes; None where that is the same."""
    return cast("Callable[[Any], Any] | None", kind.dialect_impl(_DIALECT).bind_processor(_DIALECT))


def _driver(conn: Connection) -> sqlite3.Connection:
    driver = conn.connection.driver_connection
    assert isinstance(driver, sqlite3.Connection)
    return driver
