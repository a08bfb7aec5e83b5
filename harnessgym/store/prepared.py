"""Statements of the hot path: compiled once per database and executed directly by its driver.

Recording a call takes several statements, and SQLAlchemy's execution of each costs more than the database's.
SQLAlchemy still builds the SQL and converts the values, from the same tables; only its execution is skipped.
Errors of the database arrive as the driver's own exceptions, which the trace store explains like any other.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

from sqlalchemy import Connection, Dialect, Table
from sqlalchemy.engine.url import URL
from sqlalchemy.sql.dml import UpdateBase

from harnessgym.errors import StoreError
from harnessgym.store.backend import PIPELINE, insert_for

Insert = Callable[[Table], Any]
_POSITIONAL = {"sqlite": "qmark", "postgresql": "format"}
_NUMBERED = "numeric_dollar"
"""The server's own parameter style, which pipelines take."""


class Prepared:
    """One statement.

    ```python
    insert_row = Prepared(insert(table), ("id", "body"))
    insert_row.run(conn, {"id": 1, "body": "text"})
    ```
    """

    def __init__(
        self, statement: UpdateBase | Callable[[Insert], UpdateBase], columns: Iterable[str] = ()
    ) -> None:
        """`columns` are the columns of an insert; an update names its own.

        `statement` may be a function that builds it from the database's own `insert`, which has
        `on_conflict_do_nothing`.
        """
        self._statement = statement
        self._columns = list(columns)
        self._compiled: dict[str, _Compiled] = {}
        """By parameter style."""

    def run(self, conn: Connection, values: Mapping[str, Any], otherwise: StoreError | None = None) -> None:
        """Execute the statement once, in the connection's transaction.

        Raises `otherwise` if it wrote no row. On a connection with a `StatementPipeline`, errors are raised
        later.
        """
        pipeline = conn.info.get(PIPELINE)
        if pipeline is not None:
            compiled = self._for(conn, _NUMBERED)
            pipeline.send(compiled.sql, compiled.row(values), otherwise)
            return
        compiled = self._for(conn)
        row_count = _driver(conn).execute(compiled.sql, compiled.row(values)).rowcount
        if otherwise is not None and not row_count:
            raise otherwise

    def run_many(self, conn: Connection, rows: Iterable[Mapping[str, Any]]) -> None:
        """Execute the statement for every row."""
        if PIPELINE in conn.info:
            for values in rows:
                self.run(conn, values)
            return
        compiled = self._for(conn)
        made = [compiled.row(values) for values in rows]
        # One row is the usual case, and `execute` is cheaper for it than a cursor and `executemany`.
        if len(made) == 1:
            _driver(conn).execute(compiled.sql, made[0])
        else:
            _driver(conn).cursor().executemany(compiled.sql, made)

    def _for(self, conn: Connection, paramstyle: str = "") -> "_Compiled":
        name = conn.dialect.name
        style = paramstyle or _POSITIONAL[name]
        compiled = self._compiled.get(style)
        if compiled is None:
            statement = self._statement
            made = statement if isinstance(statement, UpdateBase) else statement(insert_for(name))
            compiled = _Compiled(made, _positional(conn.dialect, style), self._columns)
            self._compiled[style] = compiled
        return compiled


class _Compiled:
    """A statement compiled for one driver."""

    def __init__(self, statement: UpdateBase, dialect: Dialect, columns: list[str]) -> None:
        compiled: Any = statement.compile(dialect=dialect, column_keys=columns or None)
        self.sql = str(compiled)
        binds: Mapping[str, Any] = compiled.binds
        names = cast("Iterable[str]", compiled.positiontup)
        self._values = [(name, _converter(binds[name].type, dialect), binds[name].value) for name in names]

    def row(self, values: Mapping[str, Any]) -> list[Any]:
        """Return the statement's parameters in order."""
        row = []
        for name, convert, default in self._values:
            value = values.get(name, default)
            row.append(value if convert is None else convert(value))
        return row


def _positional(dialect: Dialect, paramstyle: str) -> Dialect:
    """Return the connection's dialect with positional parameters, which drivers handle fastest."""
    name = dialect.name
    kind: Callable[..., Dialect] = URL.create(f"{name}+{dialect.driver}").get_dialect()
    return kind(paramstyle=paramstyle)


def _converter(kind: Any, dialect: Dialect) -> Callable[[Any], Any] | None:
    """Return the conversion from a Python value to the driver's; None if no conversion is needed."""
    return cast("Callable[[Any], Any] | None", kind.dialect_impl(dialect).bind_processor(dialect))


def _driver(conn: Connection) -> Any:
    return conn.connection.driver_connection
