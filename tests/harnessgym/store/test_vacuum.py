"""The space of removed rows."""

import sqlite3
from contextlib import closing

import pytest

from harnessgym.errors import StoreError
from harnessgym.store import TraceStore, leases
from harnessgym.store.retention import LEASE, Retention, prune
from harnessgym.store.vacuum import vacuum
from tests.harnessgym.store.recorded_runs import add_rollouts, begin_run, end_run


@pytest.fixture
def emptied(store):
    """A database that held a megabyte more."""
    store.write(lambda conn: conn.exec_driver_sql("INSERT INTO messages VALUES ('a', 'b')"))
    recording = begin_run(store)
    _, (rollout_id,), _ = add_rollouts(recording, 1, turns=1)
    session = recording.session(rollout_id)
    for _ in range(4):
        session.call(prompt=140_000)
    end_run(recording)
    prune(store.url, Retention(-60.0))
    store.close()
    return store.url


def test_space_is_given_back(emptied, kind):
    found = vacuum(emptied, full=True)
    assert found.before - found.after > 1_000_000
    TraceStore.open(emptied).close()


def test_postgresql_keeps_its_files_unless_it_is_asked(emptied, kind):
    found = vacuum(emptied)
    if kind == "postgresql":
        assert found.after > found.before - 1_000_000
    else:
        assert found.before - found.after > 1_000_000


def test_a_file_that_others_write_to(tmp_path):
    path = tmp_path / "traces.db"
    TraceStore.create(f"sqlite:///{path}").close()
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match=r"Others write to .*traces.db: nothing was changed. End them"):
            vacuum(f"sqlite:///{path}?timeout=0.2")
        other.execute("ROLLBACK")
    vacuum(f"sqlite:///{path}?timeout=0.2")


def test_a_file_that_others_read(tmp_path):
    path = tmp_path / "traces.db"
    TraceStore.create(f"sqlite:///{path}").close()
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN")
        other.execute("SELECT count(*) FROM runs").fetchall()
        with pytest.raises(StoreError, match=r"Others read .*traces.db: .*End them"):
            vacuum(f"sqlite:///{path}?timeout=0.2")


def test_not_while_rows_are_removed(store):
    store.write(lambda conn: leases.acquire(conn, LEASE, "host:7", 60.0))
    with pytest.raises(StoreError, match="Process host:7 is removing rows"):
        vacuum(store.url)
