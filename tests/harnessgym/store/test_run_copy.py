"""A run copied from one database to another, row by row."""

import pytest
from sqlalchemy import insert, select, text, update

from harnessgym.errors import StoreError
from harnessgym.store import TraceStore, freezing, removal, runs, tables
from harnessgym.store.connections import connected
from harnessgym.store.run_copy import RunCopy, reading, write
from harnessgym.task import Task
from tests.harnessgym.store.recorded_runs import (
    add_rollouts,
    begin_run,
    bodies_of,
    count,
    end_run,
    rows_of_everything,
)


@pytest.fixture
def kind():
    """Copies between SQLite and PostgreSQL are tested with run files."""
    return "sqlite"


@pytest.fixture
def recording(store):
    return begin_run(store)


@pytest.fixture
def target(make_url):
    """Another database, with nothing in it."""
    with TraceStore.open(make_url()) as other:
        yield other


def copy_run(source, target, run_id):
    """Copy a run in one transaction. Returns the progress and the rows by table."""
    with connected(source.url) as read, connected(target.url) as written, written.writer.begin():
        copy = RunCopy(read.reader, written.writer, run_id)
        return list(copy.portions()), copy.rows


def test_every_row_is_copied_and_counted(store, recording, target):
    _, _, first = add_rollouts(recording, 3)
    _, _, second = add_rollouts(recording, 2, "before_greedy", finish=False)
    progress, rows = copy_run(store, target, recording.run_id)
    assert progress == [(0, 5), (5, 5)]
    assert rows_of_everything(target) == rows_of_everything(store)
    assert {name: number for name, number in rows.items() if number} == {
        name: len(stored) for name, stored in rows_of_everything(store).items() if stored
    }
    assert bodies_of(target, first | second) == first | second


def test_a_run_without_rollouts_is_copied_too(store, recording, target):
    progress, rows = copy_run(store, target, recording.run_id)
    assert progress == [(0, 0)]
    assert (rows["runs"], rows["policies"], rows["policy_versions"]) == (1, 1, 1)
    assert count(target, tables.groups) == 0
    assert count(target, tables.tasks) == 0


def test_only_the_run_itself_is_copied(store, recording, target):
    add_rollouts(recording)
    other = begin_run(store, "other")
    add_rollouts(other)
    copy_run(store, target, other.run_id)
    assert list(rows_of_everything(target)["runs"]) == [other.run_id]
    assert {row["run_id"] for row in rows_of_everything(target)["rollouts"].values()} == {other.run_id}


def test_a_run_that_the_target_has_is_refused(store, recording, target):
    add_rollouts(recording)
    copy_run(store, target, recording.run_id)
    before = rows_of_everything(target)
    with pytest.raises(StoreError, match=f"has run {recording.run_id} already: nothing was changed"):
        copy_run(store, target, recording.run_id)
    assert rows_of_everything(target) == before


def test_a_run_whose_groups_were_removed_may_be_copied_again(store, recording, target):
    _, ids, sent = add_rollouts(recording)
    copy_run(store, target, recording.run_id)
    target.write(lambda conn: removal.remove(conn, ids))
    copy_run(store, target, recording.run_id)
    assert rows_of_everything(target) == rows_of_everything(store)
    assert bodies_of(target, sent) == sent


def test_a_task_that_the_target_has_keeps_its_id_there(store, recording, target):
    add_rollouts(recording)
    known = target.write(lambda conn: runs.add_task(conn, "lookup", Task("t0", "Find it.")))
    other = target.write(lambda conn: runs.add_task(conn, "lookup", Task("t0", "Find something else.")))
    assert known != recording.task_id
    copy_run(store, target, recording.run_id)
    rows = rows_of_everything(target)
    assert set(rows["tasks"]) == {known, other}
    for name in ("groups", "rollouts"):
        assert {row["task_id"] for row in rows[name].values()} == {known}


def test_frozen_rollouts_are_frozen_in_the_target(store, recording, target):
    _, (first, second), _ = add_rollouts(recording)
    end_run(recording)
    store.write(lambda conn: freezing.freeze(conn, [second]))
    copy_run(store, target, recording.run_id)
    rows = rows_of_everything(target)["rollouts"]
    assert (bool(rows[first]["frozen"]), bool(rows[second]["frozen"])) == (False, True)


def test_json_is_copied_as_it_is_written(store, recording, target):
    odd = '{"b":1,  "a": 1.50, "letter": "\\u00fc"}'
    statement = text("UPDATE runs SET config = :config").bindparams(config=odd)
    store.write(lambda conn: conn.execute(statement))
    copy_run(store, target, recording.run_id)
    (row,) = rows_of_everything(target)["runs"].values()
    assert row["config"] == odd


def test_times_and_orphaned_versions_stay_as_they_are(store, recording, target):
    recording.publish(1, 0)
    version = tables.policy_versions
    store.write(lambda conn: conn.execute(update(version).values(orphaned=True, created_at=123.456789)))
    copy_run(store, target, recording.run_id)
    query = select(version.c.version, version.c.orphaned, version.c.created_at).order_by(version.c.version)
    rows = target.read(lambda conn: [tuple(row) for row in conn.execute(query)])
    assert rows == [(0, True, 123.456789), (1, True, 123.456789)]


def test_rows_that_are_known_are_skipped_only_if_that_is_wanted(store):
    store.write(lambda conn: conn.execute(insert(tables.messages).values(hash="a", body="first")))
    rows = [{"hash": "a", "body": "first"}, {"hash": "b", "body": "second"}]
    with pytest.raises(StoreError, match="UNIQUE"):
        store.write(lambda conn: write(conn, tables.messages, rows))
    assert count(store, tables.messages) == 1
    store.write(lambda conn: write(conn, tables.messages, rows, known=True))
    stored = store.read(lambda conn: conn.execute(reading(tables.messages)).mappings().all())
    assert sorted(map(dict, stored), key=lambda row: row["hash"]) == rows
    store.write(lambda conn: write(conn, tables.messages, []))
    assert count(store, tables.messages) == 2
