"""Connections besides those of a trace store, for long transactions and for work outside transactions.

Nothing is retried here: whoever gets an error starts over.
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
    """Two connections to one database.

    ```python
    with connected("sqlite:///traces.db") as database:
        with database.writer.begin():
            database.writer.execute(delete(table))
    ```
    """

    backend: Backend
    engine: Engine
    reader: Connection = field(init=False)
    """Its transactions each see one state of the database."""
    writer: Connection = field(init=False)
    """Its transactions take SQLite's write lock when they begin."""

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
    """Open connections to an existing database.

    Raises `StoreError` if the database has another schema revision or returns an error.
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
