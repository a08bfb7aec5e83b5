"""Runs one read-only SQL statement that a person wrote. No statement can change the database.

`ask` takes a URL and gives the first rows. It opens a SQLite file read-only, with an authorizer that allows
only reads. PostgreSQL runs the statement in a read-only transaction, with a protocol that accepts only one
statement, and sends no more rows than are wanted. The database may have any schema revision. `select_rows`
runs a query with parameters on a connection of the store, `select_file_rows` on a SQLite file from elsewhere.
"""

import re
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import URL, Connection, inspect, text
from sqlalchemy.exc import DBAPIError

from harnessgym.errors import StoreError
from harnessgym.store.backend import Backend, open_backend, shown, url_of_file

_READS = frozenset(
    {
        sqlite3.SQLITE_SELECT,
        sqlite3.SQLITE_READ,
        sqlite3.SQLITE_FUNCTION,
        sqlite3.SQLITE_RECURSIVE,
        sqlite3.SQLITE_PRAGMA,
    }
)
_READING = frozenset({"EXPLAIN", "SELECT", "SHOW", "TABLE", "VALUES", "WITH"})
_LEAD = re.compile(r"(?:\s|\(|--[^\n]*(?:\n|$)|/\*.*?\*/)*([A-Za-z]+)", re.DOTALL)
"""Matches what may precede a statement's first word (spaces, brackets, comments), and that word."""
_STEPS = 1_000_000
"""SQLite instructions between two calls of the progress handler, in which Python can handle Ctrl-C."""
_CHECK_EVERY = 10_000
"""Steps of SQLite's virtual machine between two checks of the deadline."""
_HIDDEN = ("alembic_version",)
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Answered:
    """The result of a query."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    more: bool
    """Whether there are more rows than `limit`."""


@dataclass(frozen=True, slots=True)
class Relation:
    """A table or a view."""

    name: str
    kind: str
    """table or view."""
    columns: tuple[tuple[str, str], ...]
    """Name and type of each column."""


def ask(url: str, query: str, limit: int) -> Answered:
    """Return the first rows of a query.

    Raises `StoreError` if the query would write, is not exactly one statement, or fails.
    """
    backend = open_backend(url)
    backend.refuse_absent()
    backend_name = backend.url.get_backend_name()
    with _explained(backend, query):
        return (_ask_sqlite if backend_name == "sqlite" else _ask_postgresql)(backend, query, limit)


def select_rows(conn: Connection, query: str, parameters: Mapping[str, Any]) -> list[Row]:
    """Return the rows of one statement, as dicts by column. Statements that would write are refused.

    The statement names its parameters as `:name`.
    """
    if conn.dialect.name != "sqlite":
        conn.exec_driver_sql("SET TRANSACTION READ ONLY")
        return _select_postgresql(conn, query, parameters)
    # The connection belongs to a pool and may serve others later, so the pragma is always reset.
    conn.exec_driver_sql("PRAGMA query_only = ON")
    try:
        return [dict(row) for row in conn.execute(text(query), dict(parameters)).mappings()]
    finally:
        conn.exec_driver_sql("PRAGMA query_only = OFF")


def select_file_rows(
    path: Path, query: str, parameters: Mapping[str, Any], timeout_s: float = 10.0
) -> list[Row]:
    """Like `select_rows`, on a SQLite file that is neither trusted nor changed.

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
        raise StoreError(f"The query {query!r} failed on {path}: {error}.") from error


def relations(conn: Connection) -> list[Relation]:
    """Return tables, then views, each by name."""
    inspector = inspect(conn)
    named = [(name, "table") for name in sorted(inspector.get_table_names())] + [
        (name, "view") for name in sorted(inspector.get_view_names())
    ]
    return [
        Relation(
            name, kind, tuple((column["name"], str(column["type"])) for column in inspector.get_columns(name))
        )
        for name, kind in named
        if name not in _HIDDEN
    ]


def _ask_sqlite(backend: Backend, query: str, limit: int) -> Answered:
    path = Path(backend.url.database or "").absolute()
    with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True)) as driver:
        # mode=ro protects this file only; the authorizer also refuses ATTACH, which could write elsewhere.
        driver.set_authorizer(_authorize)
        driver.set_progress_handler(lambda: 0, _STEPS)
        return _first(driver.execute(query), limit)


def _ask_postgresql(backend: Backend, query: str, limit: int) -> Answered:
    if _begins_with(query) not in _READING:
        raise StoreError(_refusal(query))
    engine = backend.engine()
    try:
        with engine.connect() as conn:
            conn.exec_driver_sql("SET TRANSACTION READ ONLY")
            return _streamed(conn.connection.driver_connection, query, limit)
    finally:
        engine.dispose()


def _select_postgresql(conn: Connection, query: str, parameters: Mapping[str, Any]) -> list[Row]:
    """Return the rows of one statement in the connection's read-only transaction."""
    # Prepared, because the server then accepts only one statement. A second one could end the read-only
    # transaction.
    compiled = text(query).compile(dialect=conn.dialect)
    used_parameters = {name: parameters[name] for name in compiled.params if name in parameters}
    driver: Any = conn.connection.driver_connection
    cursor = driver.execute(str(compiled), used_parameters, prepare=True)
    if cursor.description is None:
        raise StoreError(f"{query!r} gives no rows: use SELECT.")
    names = [column.name for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor]


def _streamed(driver: Any, query: str, limit: int) -> Answered:
    """Return the first rows of a query, and stop the server from sending more."""
    # Streaming uses the extended protocol, which refuses more than one statement. With the simple protocol,
    # `COMMIT; DROP ...` would leave the read-only transaction.
    cursor = driver.cursor()
    with closing(cursor.stream(query)) as sent:
        rows = list(islice(sent, limit + 1))
    # The description arrives with the first row. If there are no rows, run the query again to get the names.
    if cursor.description is None:
        cursor.execute(query, prepare=True)
    return Answered(
        tuple(column.name for column in cursor.description), tuple(rows[:limit]), len(rows) > limit
    )


def _begins_with(query: str) -> str:
    """Return the first word of a statement, after comments and brackets."""
    match = _LEAD.match(query)
    return match.group(1).upper() if match else ""


def _refusal(query: str) -> str:
    return (
        f"Only statements that read are allowed, and nothing was changed: {_one_line(query)!r}. They begin "
        f"with {', '.join(sorted(_READING))}. Only HarnessGym's own commands write traces."
    )


def _first(cursor: Any, limit: int) -> Answered:
    if cursor.description is None:
        return Answered((), (), more=False)
    rows = cursor.fetchmany(limit + 1)
    return Answered(
        tuple(column[0] for column in cursor.description),
        tuple(map(tuple, rows[:limit])),
        len(rows) > limit,
    )


def _authorize(action: int, *_: object) -> int:
    return sqlite3.SQLITE_OK if action in _READS else sqlite3.SQLITE_DENY


@contextmanager
def _explained(backend: Backend, query: str) -> Iterator[None]:
    """Turn errors of the database into a `StoreError` that says what to do."""
    try:
        yield
    except DBAPIError as error:
        raise StoreError(backend.explain(error)) from error
    except backend.errors as error:
        if _writes(error):
            raise StoreError(_refusal(query)) from error
        message = " ".join(str(error).split())
        if getattr(error, "sqlite_errorname", "") == "SQLITE_NOTADB":
            raise StoreError(backend.explain(error)) from error
        raise StoreError(
            f"{_name(backend.url)} cannot answer {_one_line(query)!r}: {message}. "
            "`harnessgym traces sql SOURCE --schema` lists tables, views and columns."
        ) from error


def _writes(error: BaseException) -> bool:
    refused = str(getattr(error, "sqlite_errorname", "")).startswith(("SQLITE_AUTH", "SQLITE_READONLY"))
    return refused or str(error) == "not authorized" or getattr(error, "sqlstate", None) == "25006"


def _name(url: URL) -> str:
    return (
        shown(url)
        if url.get_backend_name() != "sqlite"
        else f"The trace database {url_of_file(Path(url.database or ''))}"
    )


def _one_line(query: str) -> str:
    flat = " ".join(query.split())
    return flat if len(flat) <= 120 else f"{flat[:119]}…"
