import pytest

from harnessgym.outcome.failure import StopReason
from harnessgym.run_folder import RunFolder
from harnessgym.store import TraceStore, policies, rollouts, runs, workers
from harnessgym.store.policies import PolicyVersion
from harnessgym.store.rollouts import GroupSpec, RolloutOutcome
from harnessgym.store.workers import WorkerRow
from harnessgym.supervisor.children import Children
from harnessgym.supervisor.stall import RunCounts, StallWatch, stand, waiting
from harnessgym.task import Task

READY, OLD, DEAD = (
    WorkerRow("e", "r", "embedded", "", v, s) for v, s in ((2, "ready"), (1, "ready"), (2, "dead"))
)

OF_OTHER = WorkerRow("e", "r", "embedded", "", 3, "ready", "other")


@pytest.mark.parametrize(
    ("standing", "words"),
    [
        (RunCounts("training", {}, {}, -1, ()), "trainer to publish"),
        (RunCounts("training", {}, {}, 2, (DEAD,)), "none is ready"),
        (RunCounts("training", {"open": 1}, {"running": 1}, 2, (READY,)), "wait for a harness"),
        (RunCounts("training", {"open": 1}, {"pending": 1}, 2, (READY,)), "wait for the node"),
        (RunCounts("evaluating_after", {}, {}, 2, (READY, OLD)), "serve the newest"),
        (RunCounts("training", {}, {}, 2, (READY, OF_OTHER), {"": 2, "other": 7}), "serve the newest"),
        (RunCounts("training", {}, {}, 2, (READY, OF_OTHER), {"": 2, "other": 3}), "submits nothing"),
        (RunCounts("training", {"complete": 4}, {}, 2, (READY,)), "trainer to consume"),
        (RunCounts("training", {}, {}, 2, (READY,)), "submits nothing"),
    ],
)
def test_it_says_who_waits_for_whom(standing, words):
    assert words in waiting(standing)


def test_it_speaks_once_a_period_and_is_quiet_while_rollouts_finish(tmp_path):
    with TraceStore.create(f"sqlite:///{tmp_path}/traces.db") as store:
        run = store.write(lambda conn: runs.add(conn, "x", {}, "0", "training"))
        policy = store.write(lambda conn: policies.register(conn, run, "policy"))
        task = store.write(lambda conn: runs.add_task(conn, "set", Task("task", "Do it.")))
        first = PolicyVersion(0, None, "full", "", 0, "", 0, committed=True, orphaned=False)
        store.write(lambda conn: policies.publish(conn, policy, first))
        store.write(lambda conn: workers.upsert(conn, WorkerRow("engine-0", run, "embedded", "", 0, "ready")))
        spec = GroupSpec(run, task, policy, "train", 0, 0, {}, ("pi",) * 2, "process", (0, 1))
        store.write(lambda conn: rollouts.submit(conn, spec))
        rows = store.write(lambda conn: rollouts.claim(conn, run, "node", 60.0, 2))
        watch = StallWatch(store, run, policy, Children(RunFolder(tmp_path), 1, 1), 60.0)

        def later(seconds):
            watch._since -= seconds
            watch._told -= seconds
            watch._next = 0.0
            return watch.look("training")

        assert later(0) is None
        assert later(59) is None
        said = later(2)
        assert "61 s while training" in said
        assert "2 running" in said
        assert "1 open" in said
        assert "engine-0 v0 ready" in said
        assert later(30) is None
        assert "121 s" in later(30)
        outcome = RolloutOutcome(rows[0].id, StopReason.FINISHED, "valid", {"reward": 1.0})
        store.write(lambda conn: rollouts.finish(conn, outcome))
        assert later(61) is None
        lost = RolloutOutcome(rows[1].id, StopReason.NO_CALLS, "infrastructure_error")
        store.write(lambda conn: rollouts.fail(conn, lost, 1))
        assert later(61) is not None
        assert store.read(lambda conn: stand(conn, run, policy, "training")).groups == {"dropped": 1}
