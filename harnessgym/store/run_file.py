"""Exports a run to one file, and imports it. The file is a trace database (SQLite) that holds only this run.

A file is written under a temporary name and renamed when it is complete. An import is one transaction.
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
from harnessgym.store.backend import open_backend, url_of_file
from harnessgym.store.connections import connected
from harnessgym.store.run_copy import RunCopy
from harnessgym.store.schema import head_revision, revision_of
from harnessgym.store.tables import runs
from harnessgym.store.trace_store import TraceStore

Progress = Callable[[int, int], None]
"""Called with the number of rollouts copied and the total."""


@dataclass(frozen=True, slots=True)
class Moved:
    """A run that was exported to a file or imported from one."""

    run_id: str
    rollouts: int
    rows: dict[str, int]
    """Rows read from the source, by table. Texts that several portions share count for each."""
    bytes: int
    """Size of the file."""


def run_of(conn: Connection, prefix: str) -> str:
    """Return the id of the run with this prefix; `latest` is the newest run.

    Raises `StoreError` unless exactly one run matches.
    """
    known = list(conn.execute(select(runs.c.id).order_by(runs.c.created_at, runs.c.id)).scalars())
    matching_ids = known[-1:] if prefix == "latest" else [name for name in known if name.startswith(prefix)]
    if len(matching_ids) == 1:
        return str(matching_ids[0])
    problem = "The database has no run" if not matching_ids else "More than one run of the database"
    raise StoreError(
        f"{problem} {'beginning' if matching_ids else 'that begins'} with {prefix!r}. It has: "
        f"{', '.join(known) or 'none'}."
    )


def export_run(url: str, run: str, out: Path, progress: Progress = lambda *_: None) -> Moved:
    """Write a run to a file. Raises `StoreError` if there is no such run or the file exists already."""
    if out.exists():
        raise StoreError(f"{out} exists already: remove it, or give another name.")
    part = out.with_name(f"{out.name}.part")
    with connected(url) as source, source.reader.begin():
        run_id = run_of(source.reader, run)
        try:
            copied = _written(source.reader, run_id, part, progress)
        except BaseException:
            # Ctrl-C too: a partial file must not stay behind, and `out` does not exist yet.
            _remove(part)
            raise
    part.rename(out)
    return Moved(run_id, *copied, bytes=out.stat().st_size)


def import_run(file: Path, url: str, progress: Progress = lambda *_: None) -> Moved:
    """Read a run from a file into a database, which is created if it does not exist.

    Raises `StoreError` if the file does not hold exactly one run, if the database has that run already, or if
    it has another schema revision. After an error the database is as it was.
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
    """Copy a run into a new file. Returns the number of rollouts, and of rows by table."""
    _remove(part)
    url = url_of_file(part)
    TraceStore.create(url).close()
    with connected(url) as target:
        copy = RunCopy(source, target.writer, run_id)
        done = 0
        for done, total in copy.portions():
            target.writer.commit()
            progress(done, total)
    # In WAL mode the data may be in the `-wal` file next to it. Leaving that mode makes it a single file.
    with closing(sqlite3.connect(part)) as raw:
        raw.execute("PRAGMA journal_mode=DELETE")
    return done, dict(copy.rows)


def _remove(part: Path) -> None:
    for suffix in ("", "-wal", "-shm", "-journal"):
        part.with_name(part.name + suffix).unlink(missing_ok=True)


def _is_new(url: str) -> bool:
    """Return whether the database does not exist or has no schema yet."""
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
    """Connect to a run file without changing it. A file of an earlier release is migrated in a copy."""
    if not file.is_file():
        raise StoreError(f"There is no file {file}. `harnessgym store export SOURCE RUN FILE` writes one.")
    with tempfile.TemporaryDirectory(prefix="harnessgym-import-") as folder:
        revision = _revision(file)
        if revision != head_revision():
            copied = Path(folder) / "run.db"
            shutil.copy(file, copied)
            try:
                TraceStore.create(url_of_file(copied)).close()
            except SchemaError:
                raise SchemaError(
                    f"{file} was written by a later release (schema revision {revision}); this one knows "
                    f"{head_revision()}. Upgrade HarnessGym."
                ) from None
            file = copied
        with _read_only(file) as conn:
            yield conn


@contextmanager
def _read_only(file: Path) -> Iterator[Connection]:
    backend = open_backend(url_of_file(file))
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
        revision = revision_of(conn)
    if revision is None:
        raise StoreError(
            f"{file} is not a run file: it has no traces. `harnessgym store export SOURCE RUN FILE` "
            "writes one."
        )
    return revision


def _only_run(conn: Connection, file: Path) -> str:
    run_ids = list(conn.execute(select(runs.c.id).order_by(runs.c.created_at)).scalars())
    if len(run_ids) != 1:
        raise StoreError(
            f"{file} has {len(run_ids)} runs ({', '.join(run_ids) or 'none'}), but an import takes one "
            f"run. `harnessgym store export {url_of_file(file)} RUN OUT` writes one of them to a file."
        )
    return str(run_ids[0])
