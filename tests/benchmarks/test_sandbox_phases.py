"""Lost, doubled and unearned rewards, made on purpose, are named; and where rollouts are is told from the
store.
"""

import json

import pytest

from benchmarks.sandbox.phases import causes, moment, wrong
from harnessgym.outcome.failure import Cause, StopReason
from harnessgym.store import TraceStore, policies, rollouts, runs
from harnessgym.store.rewards import RewardRow
from harnessgym.store.rewards import add as add_reward
from harnessgym.store.rollouts import GroupSpec, RolloutOutcome
from harnessgym.task import Task

EXPECTED = {"t": 1.0}


@pytest.fixture
def store(tmp_path):
    with TraceStore.create(f"sqlite:///{tmp_path}/traces.db") as opened:
        yield opened


@pytest.fixture
def claimed(store):
    """Two samples of one task, both under way."""

    def add(conn):
        run_id = runs.add(conn, "x", {}, "0", "training")
        policy_id, task_id = (
            policies.register(conn, run_id, "policy"),
            runs.add_task(conn, "set", Task("t", "Do.")),
        )
        rollouts.submit(
            conn, GroupSpec(run_id, task_id, policy_id, "rollout", 0, 0, {}, ("a", "a"), "process", (0, 1))
        )
        return rollouts.claim(conn, run_id, "node", 60.0, 2)

    return store.write(add)


def finish(store, row, reward):
    outcome = RolloutOutcome(row.id, StopReason.FINISHED, "valid", {"reward": reward})
    store.write(lambda conn: rollouts.finish(conn, outcome))


def found(store, tmp_path, slots):
    path = tmp_path / "results.jsonl"
    path.write_text("".join(json.dumps({"task": "t", "slot": slot}) + "\n" for slot in slots))
    return store.read(lambda conn: wrong(conn, path, EXPECTED, samples=2, turns=0))


def test_nothing_is_wrong_with_one_right_reward_each(store, claimed, tmp_path):
    assert store.read(moment).phases == {"preparing": 2, "running": 0, "grading": 0}
    for row in claimed:
        finish(store, row, 1.0)
    assert not found(store, tmp_path, [0, 1])
    assert store.read(moment).finished == 2


def test_a_sample_without_a_verdict_is_lost(store, claimed, tmp_path):
    finish(store, claimed[0], 1.0)
    failed = RolloutOutcome(
        claimed[1].id, StopReason.SANDBOX_ERROR, "infrastructure_error", cause=Cause.SANDBOX_DIED
    )
    store.write(lambda conn: rollouts.fail(conn, failed, 1))
    report = found(store, tmp_path, [0, 1])
    assert report.lost == ["t sample 1: finished 0 times, 1 lines"]
    assert not report.doubled
    assert not report.unearned
    assert store.read(causes) == {"sandbox_died": 1}


def test_a_line_too_few_and_one_too_many_are_named(store, claimed, tmp_path):
    for row in claimed:
        finish(store, row, 1.0)
    report = found(store, tmp_path, [0, 0])
    assert report.doubled == ["t sample 0: finished 1 times, 2 lines"]
    assert report.lost == ["t sample 1: finished 1 times, 0 lines"]


def test_another_reward_than_the_work_deserves_is_unearned(store, claimed, tmp_path):
    finish(store, claimed[0], 1.0)
    finish(store, claimed[1], 0.0)
    assert found(store, tmp_path, [0, 1]).unearned == [
        f"t sample 1, rollout {claimed[1].id}: [0.0] after 0 calls"
    ]


def test_a_reward_of_an_attempt_that_did_not_finish_is_unearned(store, claimed, tmp_path):
    finish(store, claimed[0], 1.0)
    other = claimed[1].id
    store.write(lambda conn: add_reward(conn, RewardRow(other, "rollout", other, "reward", 1.0, "grader")))
    report = found(store, tmp_path, [0, 1])
    assert report.unearned == [f"rollout {other}: reward 1.0"]
    assert report.lost == ["t sample 1: finished 0 times, 1 lines"]
