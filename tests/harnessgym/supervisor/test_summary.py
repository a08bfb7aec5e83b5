"""The result of a run: what it says of rollouts that could not be graded."""

from pathlib import Path

import pytest

from harnessgym.cli import train
from harnessgym.config import validate
from harnessgym.outcome.failure import Cause, StopReason
from harnessgym.run_config.run import RunConfig
from harnessgym.store import TraceStore, policies, rollouts, runs
from harnessgym.store.rollouts import GroupSpec, RolloutOutcome
from harnessgym.supervisor import prepare
from harnessgym.supervisor.summary import summarise
from harnessgym.task import Task

POLICY = Path(__file__).parents[3] / "environments" / "lookup" / "policy"
SILENT = {
    "stop_reason": StopReason.ENGINE_ERROR,
    "verdict": "infrastructure_error",
    "cause": Cause.ENGINE_SILENT,
}


class Evaluated:
    """A run whose rollouts of evaluations are ended one by one."""

    def __init__(self, root):
        raw = {
            "name": "run",
            "policy": {"path": str(POLICY)},
            "tasks": {"set": "lookup"},
            "harnesses": [{"name": "h", "settings": {"argv": ["h"]}}],
        }
        self.folder = prepare(validate(RunConfig, raw, "the test"), root, lambda _: None)
        self.store = TraceStore.create(self.folder.store_url())
        self.run_id = self.store.write(lambda conn: runs.add(conn, "run", {}, "0", "training"))
        self.policy_id = self.store.write(lambda conn: policies.register(conn, self.run_id, "policy"))
        self.tasks = 0

    def evaluate(self, purpose, *attempts):
        """One task, attempted with these rewards in turn; None for one that a silent engine ended."""
        self.tasks += 1
        task = Task(f"t{self.tasks}", "Do it.")
        task_id = self.store.write(lambda conn: runs.add_task(conn, "set", task))
        spec = GroupSpec(
            self.run_id, task_id, self.policy_id, purpose, self.tasks, 0, {}, ("h",), "process", (0,)
        )
        self.store.write(lambda conn: rollouts.submit(conn, spec))
        for reward in attempts:
            (row,) = self.store.write(lambda conn: rollouts.claim(conn, self.run_id, "node", 60.0, 1))
            if reward is None:
                failed = RolloutOutcome(row.id, **SILENT)
                self.store.write(lambda conn, failed=failed: rollouts.fail(conn, failed, len(attempts)))
            else:
                done = RolloutOutcome(row.id, StopReason.FINISHED, "valid", {"reward": reward})
                self.store.write(lambda conn, done=done: rollouts.finish(conn, done))


@pytest.fixture
def evaluated(tmp_path):
    made = Evaluated(tmp_path / "run")
    yield made
    made.store.close()


def test_rollouts_that_a_silent_engine_ended_are_no_zeros_and_the_result_says_how_many(evaluated):
    evaluated.evaluate("before_greedy", 0.0)
    evaluated.evaluate("after_greedy", 1.0)
    evaluated.evaluate("after_greedy", None, None)
    evaluated.evaluate("after_sampled", None, 1.0)
    summary = summarise(evaluated.store, evaluated.folder, {}, "process")
    assert (summary["greedy_before"], summary["greedy_after"], summary["success_after"]) == (0.0, 1.0, 1.0)
    assert summary["evaluation"]["not_graded"] == dict.fromkeys(summary["evaluation"]["rollouts"], 0) | {
        "after_greedy": 1
    }
    again, lost = train._failures(summary["evaluation"])
    assert (
        again
        == "after_sampled: infrastructure failures ended 1 attempts (1 engine_silent); all were run again and graded."
    )
    assert lost.startswith(
        "after_greedy: infrastructure failures ended 2 attempts (2 engine_silent); 1 rollouts have no grade"
    )


def test_an_evaluation_without_failures_says_nothing(evaluated):
    evaluated.evaluate("after_greedy", 0.0)
    assert train._failures(summarise(evaluated.store, evaluated.folder, {}, "process")["evaluation"]) == []
