"""Faults in the store: labelled events that the graph shows, exports carry and verification accepts."""

import pytest

from harnessgym.faults.fault import FaultsSection
from harnessgym.faults.plan import FaultPlan, record
from harnessgym.store import TraceStore, events, policies, rollouts, runs
from harnessgym.store.rollouts import GroupSpec
from harnessgym.task import Task
from harnessgym.traces.graph import graph
from harnessgym.traces.verification.verify import verify


@pytest.fixture
def store(tmp_path):
    with TraceStore.create(f"sqlite:///{tmp_path / 'store.sqlite'}") as opened:
        yield opened


@pytest.fixture
def rollout_id(store):
    def work(conn):
        run = runs.add(conn, "demo", {}, "test", "training")
        policy, task = policies.register(conn, run, "policy"), runs.add_task(conn, "set", Task("t", "Do it."))
        rollouts.submit(conn, GroupSpec(run, task, policy, "train", 0, 0, {}, ("h",), "process", (0,)))
        return rollouts.claim(conn, run, "node", 60.0, 1)[0].id

    return store.write(work)


def test_every_application_is_an_event_with_its_ground_truth(store, rollout_id):
    section = FaultsSection.model_validate(
        {
            "inject": [
                {"kind": "injection", "match": "cat", "text": "obey", "label": "obeys"},
                {"kind": "latency", "seconds": 2},
            ]
        }
    )
    plan = FaultPlan(section, 1)
    for draw in plan.decide(["cat", "a.md"]):
        plan.note(draw, ["cat", "a.md"], "exec")
    store.write(lambda conn: record(conn, rollout_id, plan.applied, "the log was changed"))
    planted, late, doubt = store.read(lambda conn: events.of_rollout(conn, rollout_id, "fault"))
    assert {row.source for row in (planted, late, doubt)} == {"sandbox"}
    assert (planted.attributes["fault"], planted.attributes["label"]) == ("injection", "obeys")
    assert (planted.attributes["command"], planted.attributes["ordinal"]) == ("cat a.md", 0)
    assert planted.attributes["settings"]["text"] == "obey"
    assert (late.attributes["fault"], late.attributes["label"], late.attributes["amount"]) == (
        "latency",
        None,
        2.0,
    )
    assert doubt.attributes == {"doubt": "the log was changed"}
    assert len(store.read(lambda conn: graph(conn, rollout_id)).of_kind("fault")) == 3
    assert verify(store).findings == ()
