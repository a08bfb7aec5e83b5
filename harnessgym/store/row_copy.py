"""Rows as they are stored, from one database into another: JSON is copied as the text that it is, so that it
stays the same to the byte, and what is NULL stays NULL.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import JSON, Connection, Select, Table, Text, bindparam, cast, select

from harnessgym.store.backend import insert_into

Row = Mapping[str, Any]
_PREFIX = "value_"
"""SQLAlchemy keeps the columns' own names for itself."""


def reading(table: Table) -> Select[Any]:
    """A query of a table's rows."""
    columns = [
        cast(column, Text).label(column.name) if isinstance(column.type, JSON) else column
        for column in table.c
    ]
    return select(*columns)


def write(conn: Connection, table: Table, rows: Sequence[Row], *, known: bool = False) -> None:
    """Insert such rows. `known`: those that are there already are passed over."""
    if not rows:
        return
    values: dict[str, Any] = {}
    for column in table.c:
        is_json = isinstance(column.type, JSON)
        given = bindparam(_PREFIX + column.name, type_=Text() if is_json else column.type)
        values[column.name] = cast(given, JSON) if is_json and conn.dialect.name == "postgresql" else given
    statement = insert_into(conn)(table).values(values)
    if known:
        statement = statement.on_conflict_do_nothing()
    conn.execute(statement, [{_PREFIX + name: value for name, value in row.items()} for row in rows])
