"""Edges in a real file: order, kinds, and ends that must exist."""

import pytest

from harnessgym.errors import StoreError
from harnessgym.store import TraceStore, edges, events, policies, rollouts, runs
from harnessgym.store.edges import EdgeRow
from harnessgym.store.events import EventRow
from harnessgym.store.rollouts import GroupSpec
from harnessgym.task import Task


@pytest.fixture
def store(tmp_path):
    with TraceStore.create(f"sqlite:///{tmp_path}/traces.db") as store:
        yield store


@pytest.fixture
def rollout(store):
    """The id of a running rollout."""

    def work(conn):
        run = runs.add(conn, "demo", {}, "0", "training")
        policy, task = policies.register(conn, run, "policy"), runs.add_task(conn, "set", Task("t", "Do it."))
        spec = GroupSpec(run, task, policy, "train", 0, 0, {}, ("h",), "process", (0,))
        rollouts.submit(conn, spec)
        return rollouts.claim(conn, run, "node", 60.0, 1)[0].id

    return store.write(work)


@pytest.fixture
def ends(store, rollout):
    """The ids of three events."""
    rows = [EventRow(rollout, "message", {"n": n}, float(n)) for n in range(3)]
    store.write(lambda conn: events.add_many(conn, rows))
    return [row.id for row in rows]


def read(store, rollout, kind=None):
    return store.read(lambda conn: edges.of_rollout(conn, rollout, kind))


def test_edges_come_back_in_the_order_they_were_written(store, rollout, ends):
    first = [EdgeRow(rollout, "causal", ends[0], ends[1]), EdgeRow(rollout, "message", ends[1], ends[2])]
    second = [EdgeRow(rollout, "causal", ends[0], ends[2], "order", 0.25)]
    store.write(lambda conn: edges.add_many(conn, first))
    store.write(lambda conn: edges.add_many(conn, second))
    assert read(store, rollout) == [*first, *second]
    assert read(store, rollout, "causal") == [first[0], *second]
    assert read(store, rollout, "return") == []
    assert read(store, "another") == []


def test_nothing_to_write_is_fine(store, rollout):
    store.write(lambda conn: edges.add_many(conn, []))
    assert read(store, rollout) == []


@pytest.mark.parametrize("at", ["source", "target"])
def test_an_edge_to_an_event_that_does_not_exist_is_refused(store, rollout, ends, at):
    source, target = ("gone", ends[0]) if at == "source" else (ends[0], "gone")
    good, bad = EdgeRow(rollout, "causal", ends[0], ends[1]), EdgeRow(rollout, "causal", source, target)
    with pytest.raises(StoreError, match="FOREIGN KEY"):
        store.write(lambda conn: edges.add_many(conn, [good, bad]))
    assert read(store, rollout) == []


def test_events_of_one_kind_come_in_order_of_time(store, rollout):
    rows = [EventRow(rollout, kind, {}, t) for kind, t in (("spawn", 2.0), ("message", 1.5), ("spawn", 1.0))]
    store.write(lambda conn: events.add_many(conn, rows))
    assert store.read(lambda conn: events.of_rollout(conn, rollout, "spawn")) == [rows[2], rows[0]]
    assert store.read(lambda conn: events.of_rollout(conn, rollout)) == [rows[2], rows[1], rows[0]]
