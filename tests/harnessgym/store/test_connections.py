"""Connections for long work: what each sees, what it locks, and what its errors say."""

import sqlite3
from contextlib import closing

import pytest
from sqlalchemy import insert, select, text

from harnessgym.errors import SchemaError, StoreError
from harnessgym.store import runs, tables
from harnessgym.store.connections import connected


@pytest.fixture
def kind():
    """Locks and snapshots are those of SQLite."""
    return "sqlite"


def names(conn):
    return list(conn.execute(select(tables.runs.c.name).order_by(tables.runs.c.id)).scalars())


def add_run(conn, name):
    return runs.add(conn, name, {}, "test", "training")


def test_a_readers_transaction_sees_one_state(url):
    with connected(url) as database:
        with database.reader.begin():
            assert names(database.reader) == []
            with database.writer.begin():
                add_run(database.writer, "demo")
            assert names(database.reader) == []
        with database.reader.begin():
            assert names(database.reader) == ["demo"]


def test_a_writers_transaction_holds_the_lock_from_its_beginning(url, store):
    path = url.removeprefix("sqlite:///")
    with connected(url) as database, closing(sqlite3.connect(path, timeout=0.0)) as other:
        with database.reader.begin():
            other.execute("BEGIN IMMEDIATE")
            other.rollback()
        with database.writer.begin(), pytest.raises(sqlite3.OperationalError, match="locked"):
            other.execute("BEGIN IMMEDIATE")


def test_what_is_not_committed_is_rolled_back(url, store):
    with connected(url) as database:
        transaction = database.writer.begin()
        add_run(database.writer, "lost")
        assert transaction.is_active
    assert store.read(names) == []


def test_an_exception_of_the_block_comes_out_as_it_is_and_frees_the_lock(url, store):
    def work():
        with connected(url) as database:
            database.writer.begin()
            raise KeyError("own")

    with pytest.raises(KeyError, match="own"):
        work()
    assert store.write(lambda conn: add_run(conn, "after"))
    assert store.read(names) == ["after"]


def test_an_error_of_the_database_names_it(url):
    with (
        pytest.raises(StoreError, match=f"trace database {url} refused: .*nowhere"),
        connected(url) as database,
    ):
        database.reader.execute(text("SELECT * FROM nowhere"))


def test_foreign_keys_are_checked(url):
    row = {"id": "p", "run_id": "nowhere", "name": "policy"}
    with pytest.raises(StoreError, match="FOREIGN KEY"), connected(url) as database, database.writer.begin():
        database.writer.execute(insert(tables.policies).values(row))


def test_a_missing_database_is_not_made(tmp_path):
    path = tmp_path / "no.db"
    with pytest.raises(StoreError, match=f"no trace database at {path}"), connected(f"sqlite:///{path}"):
        raise AssertionError("it was opened")
    assert not path.exists()


def test_a_database_of_another_revision_is_refused(url):
    with connected(url) as database, database.writer.begin():
        database.writer.execute(text("UPDATE alembic_version SET version_num = '0001'"))
    with pytest.raises(SchemaError, match="revision 0001"), connected(url):
        raise AssertionError("it was opened")
