"""Rollouts are listed newest first, and each filter keeps exactly those that meet it."""

import pytest

from harnessgym.outcome.failure import StopReason
from harnessgym.store import listing, policies, rollouts, runs, sessions
from harnessgym.store.listing import RolloutFilter
from harnessgym.store.rollouts import GroupSpec, RolloutOutcome
from harnessgym.task import Task


@pytest.fixture
def listed(store):
    """Four rollouts: two of each task, ended in different ways. Returns the run."""

    def work(conn):
        run = runs.add(conn, "demo", {}, "test", "training")
        policy = policies.register(conn, run, "policy")
        for ordinal, (name, purpose) in enumerate([("easy", "train"), ("hard", "before")]):
            task = runs.add_task(conn, "set", Task(name, "Do it."))
            rollouts.submit(
                conn,
                GroupSpec(run, task, policy, purpose, ordinal, 0, {}, ("pi", "codex"), "process", (0, 1)),
            )
        rows = rollouts.claim(conn, run, "node", 60.0, 3)
        for row, reward in zip(rows[:2], (1.0, 0.0), strict=True):
            rollouts.finish(
                conn, RolloutOutcome(row.id, StopReason.FINISHED, "valid", {"reward": reward, "speed": 9.0})
            )
        rollouts.fail(conn, RolloutOutcome(rows[2].id, StopReason.NO_CALLS, "infrastructure_error"), 1)
        sessions.add(conn, rows[0].id, "key", sampling={})
        return run

    return store.write(work)


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({}, ["hard/1", "hard/0", "easy/1", "easy/0"]),
        ({"harness": "pi"}, ["hard/0", "easy/0"]),
        ({"task": "easy"}, ["easy/1", "easy/0"]),
        ({"purpose": "before"}, ["hard/1", "hard/0"]),
        ({"status": "pending"}, ["hard/1"]),
        ({"verdict": "valid"}, ["easy/1", "easy/0"]),
        ({"stop_reason": "no_calls"}, ["hard/0"]),
        ({"min_reward": 0.5}, ["easy/0"]),
        ({"max_reward": 0.5}, ["easy/1"]),
        ({"min_reward": 0.5, "harness": "codex"}, []),
        ({"frozen": True}, []),
        ({"since": 1e12}, []),
        ({"run_id": "another"}, []),
    ],
)
def test_filters(store, listed, wanted, found):
    rows = store.read(lambda conn: listing.newest_rollouts(conn, 10, RolloutFilter(**wanted)))
    assert [f"{'easy' if row.purpose == 'train' else 'hard'}/{row.slot}" for row in rows] == found
    assert store.read(lambda conn: listing.newest_rollouts(conn, 1, RolloutFilter(**wanted))) == rows[:1]


def test_calls_and_tokens_are_counted(store, rollout_id, add_call):
    session = store.write(lambda conn: sessions.add(conn, rollout_id, "k", sampling={}))
    for ordinal in range(3):
        add_call(session.id, ordinal)
    (row,) = store.read(lambda conn: listing.newest_rollouts(conn, 10, RolloutFilter()))
    assert (row.id, row.calls, row.tokens, row.reward) == (rollout_id, 3, 0, None)
