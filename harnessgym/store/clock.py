"""The database's clock: the one clock that all processes of a run share.

The clocks of machines differ. Times that one process writes and another compares with the present (when a
lease ends, when a rollout started, when a worker's row was written) are therefore written and compared in
SQL, with `now()`. Callers pass durations. With SQLite this is the machine's clock: all users of the file are
on that machine.
"""

from typing import Any

from sqlalchemy import Connection, Float, select
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

SQLITE_NOW = "unix_now"
"""Name of a function that every SQLite connection gets. SQLite's own functions resolve milliseconds at best,
in which two events may tie."""


class now(FunctionElement[float]):  # noqa: N801 - it is read as a function, like SQLAlchemy's own
    """Unix seconds at the start of the statement. `now() + 60.0` is an expression too."""

    type = Float()
    name = "now"
    inherit_cache = True


def read(conn: Connection) -> float:
    """Return the time in Unix seconds, for computing durations since a stored time."""
    return float(conn.execute(select(now())).scalar_one())


@compiles(now, "sqlite")
def _sqlite(_element: now, _compiler: Any, **_: Any) -> str:
    return f"{SQLITE_NOW}()"


@compiles(now, "postgresql")
def _postgresql(_element: now, _compiler: Any, **_: Any) -> str:
    return "CAST(extract(epoch FROM statement_timestamp()) AS double precision)"
