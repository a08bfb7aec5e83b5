"""Connections beside the writer of a trace store: for transactions that take long, and for what runs outside
of any.

Nothing is tried again here: who is refused begins anew.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from sqlalchemy import Connection
from sqlalchemy.engine import Engine

from harnessgym.errors import StoreError
from harnessgym.store.backend import Backend, open_backend
from harnessgym.store.schema import WRITING
from harnessgym.store.trace_store import TraceStore


@dataclass(frozen=True, slots=True)
class Connections:
    """Two of them to one database.

    ```python
    with connected("sqlite:///traces.db") as database:
        with database.writer.begin():
            database.writer.execute(delete(table))
    ```
    """

    backend: Backend
    engine: Engine
    reader: Connection = field(init=False)
    """A transaction of its sees one state of the database."""
    writer: Connection = field(init=False)
    """A transaction of its takes SQLite's write lock when it begins."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "reader", self.engine.connect())
        object.__setattr__(self, "writer", self.engine.connect().execution_options(**WRITING))

    def close(self) -> None:
        """Close both; what is not committed is rolled back."""
        for conn in (self.reader, self.writer):
            with suppress(*self.backend.errors):
                conn.close()
        self.engine.dispose()


@contextmanager
def connected(url: str) -> Iterator[Connections]:
    """Connections to an existing database. Raises `StoreError` if it is of another schema revision, or
    refuses.
    """
    TraceStore.open(url).close()
    backend = open_backend(url)
    engine = backend.engine()
    try:
        database = Connections(backend, engine)
        try:
            yield database
        finally:
            database.close()
    except backend.errors as error:
        raise StoreError(backend.explain(error)) from error
    finally:
        engine.dispose()
