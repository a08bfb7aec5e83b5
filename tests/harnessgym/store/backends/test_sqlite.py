"""The SQLite backend: how its connections are set up, and what it says about real errors."""

import sqlite3
from contextlib import closing

import pytest
from sqlalchemy import text

from harnessgym.errors import StoreError
from harnessgym.store.backend import open_backend, url_of_file
from harnessgym.store.schema import WRITING


@pytest.fixture
def path(tmp_path, migrated_file):
    """A database file with the schema."""
    path = tmp_path / "traces.db"
    path.write_bytes(migrated_file.read_bytes())
    return path


@pytest.fixture
def backend(path):
    return open_backend(url_of_file(path) + "?timeout=0.05")


@pytest.fixture
def engine(backend):
    engine = backend.engine()
    yield engine
    engine.dispose()


def error_of(work):
    with pytest.raises(sqlite3.Error) as caught:
        work()
    return caught.value


@pytest.mark.parametrize(
    ("pragma", "value"),
    [("journal_mode", "wal"), ("foreign_keys", 1), ("temp_store", 2), ("page_size", 16_384)],
)
def test_every_connection_is_set_up(engine, pragma, value):
    for _ in range(2):
        with engine.connect() as conn:
            assert conn.execute(text(f"PRAGMA {pragma}")).scalar_one() == value


@pytest.mark.parametrize(("synchronous", "value"), [("NORMAL", 1), ("FULL", 2)])
def test_a_commit_is_as_durable_as_it_was_asked_for(path, synchronous, value):
    engine = open_backend(url_of_file(path), synchronous).engine()
    with engine.connect() as conn:
        assert conn.execute(text("PRAGMA synchronous")).scalar_one() == value
    engine.dispose()


def test_a_reader_does_not_lock_and_a_writer_does(engine, path):
    with closing(sqlite3.connect(path, timeout=0.0, isolation_level=None)) as other:
        with engine.connect() as conn, conn.begin():
            conn.execute(text("SELECT count(*) FROM runs"))
            other.execute("BEGIN IMMEDIATE")
            other.execute("ROLLBACK")
        with engine.connect().execution_options(**WRITING) as conn, conn.begin():
            assert "locked" in str(error_of(lambda: other.execute("BEGIN IMMEDIATE")))


def test_a_lock_that_is_not_given_up_is_waited_for_as_long_as_the_url_says(backend, path):
    assert backend.max_wait_s == 0.05
    with (
        closing(sqlite3.connect(path, isolation_level=None)) as holder,
        closing(sqlite3.connect(path, timeout=0.0, isolation_level=None)) as other,
    ):
        holder.execute("BEGIN IMMEDIATE")
        error = error_of(lambda: other.execute("BEGIN IMMEDIATE"))
    assert backend.passing(error)
    assert backend.explain(error) == (
        f"The trace database sqlite:///{path} stayed locked for 0.05 s. End the process that holds it."
    )


def test_a_full_disk_passes_and_what_was_committed_is_safe(backend, path):
    with closing(sqlite3.connect(path)) as driver:
        pages = driver.execute("PRAGMA page_count").fetchone()[0]
        driver.execute(f"PRAGMA max_page_count={pages}")
        error = error_of(lambda: driver.execute("INSERT INTO messages VALUES ('a', ?)", ("x" * 10**6,)))
    assert backend.passing(error)
    assert backend.explain(error).startswith(f"The disk that holds sqlite:///{path} is full (")
    assert backend.explain(error).endswith("Free space and go on: what was committed is safe.")


def test_a_file_that_is_no_database_does_not_become_one(backend, path):
    path.write_bytes(b"no database" * 100)
    with closing(sqlite3.connect(path)) as driver:
        error = error_of(lambda: driver.execute("SELECT * FROM runs"))
    assert not backend.passing(error)
    assert backend.explain(error).startswith(f"sqlite:///{path} is damaged or not a trace database (")


def test_a_file_that_cannot_be_written_is_a_matter_of_permissions(backend, path):
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as driver:
        error = error_of(lambda: driver.execute("DELETE FROM runs"))
    assert not backend.passing(error)
    assert "cannot be opened for writing (" in backend.explain(error)
    assert backend.explain(error).endswith("Check the folder and its permissions.")


def test_any_other_error_is_told_in_the_databases_words(backend, path):
    with closing(sqlite3.connect(path)) as driver:
        error = error_of(lambda: driver.execute("SELECT * FROM nowhere"))
    assert not backend.passing(error)
    assert backend.explain(error) == f"The trace database sqlite:///{path} refused: no such table: nowhere"


def test_an_absent_file_is_refused_with_what_makes_one_and_its_folder_can_be_made(tmp_path):
    path = tmp_path / "a" / "b" / "traces.db"
    backend = open_backend(url_of_file(path))
    with pytest.raises(StoreError, match=f"no trace database at {path}. Run `harnessgym store migrate"):
        backend.refuse_absent()
    backend.create_location()
    assert path.parent.is_dir()
    with pytest.raises(StoreError, match="no trace database"):
        backend.refuse_absent()
    path.touch()
    backend.refuse_absent()


def test_the_size_is_that_of_its_pages(engine, backend, path):
    with engine.connect() as conn:
        assert backend.size(conn) == path.stat().st_size
        conn.execute(text("INSERT INTO messages VALUES ('a', :body)"), {"body": "x" * 100_000})
        grown = backend.size(conn) - path.stat().st_size
        assert grown >= 90_000
        assert grown % 16_384 == 0


def test_foreign_keys_are_off_only_while_a_connection_is_alone(engine, backend):
    def foreign_keys(conn):
        return conn.connection.driver_connection.execute("PRAGMA foreign_keys").fetchone()[0]

    def alone(conn, work):
        with backend.alone(conn):
            assert foreign_keys(conn) == 0
            work(conn)

    def lose(conn):
        conn.execute(text("INSERT INTO messages VALUES ('a', 'text')"))
        raise KeyError("lost")

    with engine.connect() as conn:
        alone(conn, lambda conn: None)
        assert foreign_keys(conn) == 1
        with pytest.raises(KeyError, match="lost"):
            alone(conn, lose)
        assert foreign_keys(conn) == 1
        assert conn.execute(text("SELECT count(*) FROM messages")).scalar_one() == 0
