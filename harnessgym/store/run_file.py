"""A run in one file: a SQLite database of the store's schema that holds nothing else: whatever reads traces
reads it.

A file is written beside its place and moved there when it is whole. An import is one transaction.
"""

import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection, create_engine, select
from sqlalchemy.pool import StaticPool

from harnessgym.errors import SchemaError, StoreError
from harnessgym.store.backend import open_backend, shown
from harnessgym.store.connections import connected
from harnessgym.store.run_copy import RunCopy
from harnessgym.store.schema import head_revision, revision_of
from harnessgym.store.tables import runs
from harnessgym.store.trace_store import TraceStore

Progress = Callable[[int, int], None]
"""Called with how many rollouts are copied, and how many there are."""


@dataclass(frozen=True, slots=True)
class Moved:
    """A run that was written to a file, or read from one."""

    run_id: str
    rollouts: int
    rows: dict[str, int]
    """By table, as they came out of the source; texts that several rollouts share count for each."""
    bytes: int
    """Of the file."""


def run_of(conn: Connection, given: str) -> str:
    """The id of a run. Raises `StoreError` unless exactly one begins like this; `latest` is the newest."""
    known = list(conn.execute(select(runs.c.id).order_by(runs.c.created_at, runs.c.id)).scalars())
    found = known[-1:] if given == "latest" else [name for name in known if name.startswith(given)]
    if len(found) == 1:
        return str(found[0])
    problem = "The database has no run" if not found else "More than one run of the database"
    raise StoreError(
        f"{problem} {'beginning' if found else 'that begins'} with {given!r}. It has: "
        f"{', '.join(known) or 'none'}."
    )


def export_run(url: str, run: str, out: Path, progress: Progress = lambda *_: None) -> Moved:
    """Write a run to a file. Raises `StoreError` if there is no such run, or something stands there
    already.
    """
    if out.exists():
        raise StoreError(f"{out} is there already: remove it, or give another name.")
    part = out.with_name(f"{out.name}.part")
    with connected(url) as source, source.reader.begin():
        run_id = run_of(source.reader, run)
        try:
            copied = _written(source.reader, run_id, part, progress)
        except BaseException:
            _remove(part)
            raise
    part.rename(out)
    return Moved(run_id, *copied, bytes=out.stat().st_size)


def import_run(file: Path, url: str, progress: Progress = lambda *_: None) -> Moved:
    """Read a run from a file into a database, which is made if there is none. What goes wrong leaves the
    database as it was.

    Raises `StoreError` if the file holds not exactly one run, if the database has that, or if it is of
    another schema revision.
    """
    with _readable(file) as source:
        run_id = _only_run(source, file)
        if _is_new(url):
            TraceStore.create(url).close()
        with connected(url) as target, target.writer.begin():
            copy = RunCopy(source, target.writer, run_id)
            done = 0
            for done, total in copy.portions():
                progress(done, total)
    return Moved(run_id, done, dict(copy.rows), bytes=file.stat().st_size)


def _written(source: Connection, run_id: str, part: Path, progress: Progress) -> tuple[int, dict[str, int]]:
    """Copy a run into a new file, which is one file when it is closed."""
    _remove(part)
    url = f"sqlite:///{part}"
    TraceStore.create(url).close()
    with connected(url) as target:
        copy = RunCopy(source, target.writer, run_id)
        done = 0
        for done, total in copy.portions():
            target.writer.commit()
            progress(done, total)
    with closing(sqlite3.connect(part)) as raw:
        raw.execute("PRAGMA journal_mode=DELETE")
    return done, dict(copy.rows)


def _remove(part: Path) -> None:
    for suffix in ("", "-wal", "-shm", "-journal"):
        part.with_name(part.name + suffix).unlink(missing_ok=True)


def _is_new(url: str) -> bool:
    """Whether there is nothing yet that could be of another revision."""
    backend = open_backend(url)
    path = backend.url.database if backend.url.get_backend_name() == "sqlite" else None
    if path is not None and not Path(path).exists():
        return True
    engine = backend.engine()
    try:
        with engine.connect() as conn:
            return revision_of(conn) is None
    except backend.errors as error:
        raise StoreError(backend.explain(error)) from error
    finally:
        engine.dispose()


@contextmanager
def _readable(file: Path) -> Iterator[Connection]:
    """A connection to a run file, which is not changed: one of an earlier release is migrated in a copy."""
    if not file.is_file():
        raise StoreError(f"There is no file {file}. `harnessgym store export SOURCE RUN FILE` writes one.")
    with tempfile.TemporaryDirectory(prefix="harnessgym-import-") as folder:
        found = _revision(file)
        if found != head_revision():
            copied = Path(folder) / "run.db"
            shutil.copy(file, copied)
            try:
                TraceStore.create(f"sqlite:///{copied}").close()
            except SchemaError:
                raise SchemaError(
                    f"{file} was written by a later release (schema revision {found}); this one knows "
                    f"{head_revision()}. "
                    "Upgrade HarnessGym."
                ) from None
            file = copied
        with _read_only(file) as conn:
            yield conn


@contextmanager
def _read_only(file: Path) -> Iterator[Connection]:
    backend = open_backend(f"sqlite:///{file}")
    address = f"{file.absolute().as_uri()}?mode=ro"
    engine = create_engine(
        "sqlite://",
        creator=lambda: sqlite3.connect(address, uri=True, isolation_level=None),
        poolclass=StaticPool,
    )
    try:
        with engine.connect() as conn:
            conn.exec_driver_sql("BEGIN")
            yield conn
    except backend.errors as error:
        raise StoreError(backend.explain(error)) from error
    finally:
        engine.dispose()


def _revision(file: Path) -> str:
    with _read_only(file) as conn:
        found = revision_of(conn)
    if found is None:
        raise StoreError(
            f"{file} is no run file: it has no traces. `harnessgym store export SOURCE RUN FILE` writes one."
        )
    return found


def _only_run(conn: Connection, file: Path) -> str:
    found = list(conn.execute(select(runs.c.id).order_by(runs.c.created_at)).scalars())
    if len(found) != 1:
        raise StoreError(
            f"{file} has {len(found)} runs ({', '.join(found) or 'none'}), and one at a time is imported. "
            f"`harnessgym store export {shown(f'sqlite:///{file}')} RUN OUT` writes one of them to a file."
        )
    return str(found[0])
