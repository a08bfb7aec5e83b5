"""The database's clock: the one clock that all processes of a run share.

Machines' own clocks differ. Whatever one process writes and another compares with the present (when a lease
ends, when a rollout started, when a worker's row was written) is therefore written and compared in SQL, by
`now()`; callers give durations. With SQLite it is the machine's clock: all who use the file are on that machine.
"""

from typing import Any

from sqlalchemy import Connection, Float, select
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

SQLITE_NOW = "unix_now"
"""A function that every connection to SQLite is given: SQLite's own know milliseconds at best, and two events may
tie in one.
"""


class now(FunctionElement[float]):  # noqa: N801 - it is read as a function, like SQLAlchemy's own
    """Unix seconds at the beginning of the statement. `now() + 60.0` is an expression too."""

    type = Float()
    name = "now"
    inherit_cache = True


def read(conn: Connection) -> float:
    """The time in Unix seconds, for durations since a time that the store has."""
    return float(conn.execute(select(now())).scalar_one())


@compiles(now, "sqlite")
def _sqlite(_element: now, _compiler: Any, **_: Any) -> str:
    return f"{SQLITE_NOW}()"


@compiles(now, "postgresql")
def _postgresql(_element: now, _compiler: Any, **_: Any) -> str:
    return "CAST(extract(epoch FROM statement_timestamp()) AS double precision)"
