"""Runs and their tasks in a real file."""

import pytest

from harnessgym.errors import StoreError
from harnessgym.store import TraceStore, runs
from harnessgym.store.owned_rows import parents_first
from harnessgym.task import Task


@pytest.fixture
def store(tmp_path):
    with TraceStore.create(f"sqlite:///{tmp_path}/traces.db") as store:
        yield store


def add(store, name="demo", **more):
    return store.write(lambda conn: runs.add(conn, name, {"a": 1}, "0", "training", **more))


def test_a_run_comes_back_as_it_was_added(store):
    name = add(store)
    run = store.read(lambda conn: runs.get(conn, name))
    assert (run.name, run.config, run.code_version, run.status) == ("demo", {"a": 1}, "0", "training")
    assert run.ended_at is None
    assert store.read(lambda conn: runs.get(conn, "gone")) is None


def test_a_run_may_bring_its_id(store):
    assert add(store, run_id="mine") == "mine"


def test_only_one_run_is_expected(store):
    assert store.read(runs.only) is None
    first = add(store)
    assert store.read(runs.only).id == first
    second = add(store)
    with pytest.raises(StoreError, match=f"holds 2 runs .{first}, {second}."):
        store.read(runs.only)
    assert [run.id for run in store.read(runs.all_of)] == [first, second]


@pytest.mark.parametrize(
    ("status", "over"), [("evaluating_after", False), ("training", False), ("done", True), ("failed", True)]
)
def test_a_run_has_ended_when_its_status_says_so(store, status, over):
    name = add(store)
    store.write(lambda conn: runs.set_status(conn, name, status))
    run = store.read(lambda conn: runs.get(conn, name))
    assert (run.status, run.ended_at is not None) == (status, over)


def test_a_run_that_goes_on_has_not_ended(store):
    name = add(store)
    store.write(lambda conn: runs.set_status(conn, name, "failed"))
    store.write(lambda conn: runs.set_status(conn, name, "training"))
    assert store.read(lambda conn: runs.get(conn, name)).ended_at is None


def test_a_configuration_can_be_replaced(store):
    first, second = add(store), add(store)
    store.write(lambda conn: runs.set_config(conn, first, {"b": 2}))
    configs = {run.id: run.config for run in store.read(runs.all_of)}
    assert configs == {first: {"b": 2}, second: {"a": 1}}


def test_an_equal_task_is_stored_once(store):
    task = Task("t", "Do it.", files={"a": "b"})
    first = store.write(lambda conn: runs.add_task(conn, "set", task))
    assert store.write(lambda conn: runs.add_task(conn, "set", task)) == first
    others = [
        store.write(lambda conn, given=given: runs.add_task(conn, *given))
        for given in [
            ("other", task),
            ("set", Task("u", "Do it.", files={"a": "b"})),
            ("set", Task("t", "Do it!", files={"a": "b"})),
            ("set", Task("t", "Do it.", files={"a": "c"})),
            ("set", Task("t", "Do it.", files={"a": "b"}, metadata={"x": 1})),
        ]
    ]
    assert len({first, *others}) == 6
    assert store.read(lambda conn: runs.task_key(conn, first)) == "t"


def test_a_run_without_versions_has_no_weights(store):
    name = add(store)
    assert store.read(lambda conn: runs.weights_path(conn, name)) is None


def test_rows_come_after_their_parents():
    rows = [{"id": 3, "up": 2}, {"id": 2, "up": 1}, {"id": 1, "up": None}, {"id": 4, "up": 1}]
    assert [row["id"] for row in parents_first(rows, "up")] == [1, 2, 3, 4]


def test_a_parent_that_is_not_here_does_not_matter():
    assert [row["id"] for row in parents_first([{"id": 2, "up": 9}, {"id": 1, "up": 2}], "up")] == [2, 1]
    assert list(parents_first([], "up")) == []


def test_a_chain_may_be_long():
    rows = [{"id": at, "up": at + 1} for at in range(5000)]
    assert [row["id"] for row in parents_first(rows, "up")] == list(range(4999, -1, -1))
