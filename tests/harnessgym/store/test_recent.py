import time

import pytest
from sqlalchemy import event, text

from harnessgym.outcome.failure import Cause, StopReason
from harnessgym.run_folder import RunFolder, write_json
from harnessgym.store import TraceStore, calls, new_id, policies, recent, rollouts, runs, sessions
from harnessgym.store.calls import CallIntent, Segment
from harnessgym.store.ledger import StepRecord, TrainedRollout, commit_step
from harnessgym.store.policies import PolicyVersion
from harnessgym.store.rollouts import GroupSpec, RolloutOutcome
from harnessgym.supervisor.progress import RunObserver
from harnessgym.task import Task
from harnessgym.tokens import TokenArray, hash_ids
from tests.support.stored_rollouts import fill, filled, write_rollout

SMALL = {"runs", "workers", "leases", "CONSTANT"}
"""Tables with a row or a few per run or per process, and the one row of a question about no table."""


@pytest.fixture
def store(make_url):
    with TraceStore.open(make_url()) as opened:
        yield opened


def version(number, step, bytes_=10):
    return PolicyVersion(number, None, "full", "", step, "", bytes_, committed=True, orphaned=False)


def a_run(store, size=2):
    run = store.write(lambda conn: runs.add(conn, "x", {}, "0", "training"))
    policy = store.write(lambda conn: policies.register(conn, run, "policy"))
    task = store.write(lambda conn: runs.add_task(conn, "set", Task("task", "Do it.")))
    spec = GroupSpec(run, task, policy, "train", 0, 0, {}, ("pi",) * size, "process", tuple(range(size)))
    store.write(lambda conn: rollouts.submit(conn, spec))
    return run, policy


def claimed(store, run, limit=2):
    return [row.id for row in store.write(lambda conn: rollouts.claim(conn, run, "node", 60.0, limit))]


def test_ids_sort_by_the_time_they_were_made():
    before, made, after = recent.id_at(time.time() - 0.001), new_id(), recent.id_at(time.time() + 0.001)
    assert before < made < after
    assert recent.id_at(-5) == recent.id_at(0)


def test_calls_are_found_by_time_and_by_id(store):
    run, _ = a_run(store)
    (rollout,) = claimed(store, run, 1)
    store.write(lambda conn: write_rollout(conn, rollout, 3, TokenArray([1, 2, 3, 4]), [-0.5, -0.5]))
    found = store.read(lambda conn: recent.calls_since(conn, time.time() - 60))
    assert [(call.rollout_id, call.worker, call.tokens, call.seconds, call.open) for call in found] == [
        (rollout, "engine-0", 2, 0.1, False)
    ] * 3
    assert [call.id for call in found] == sorted(call.id for call in found)
    assert store.read(lambda conn: recent.calls_since(conn, time.time() + 60)) == []
    assert store.read(lambda conn: recent.calls_of(conn, [found[1].id, "nobody"])) == [found[1]]


def test_a_call_that_is_being_answered_is_open(store):
    run, _ = a_run(store)
    (rollout,) = claimed(store, run, 1)

    def intend(conn):
        session = sessions.add(conn, rollout, new_id(), sampling={}).id
        prompt = Segment(new_id(), session, "prompt", None, TokenArray([1]))
        digest = hash_ids(TokenArray([1]))
        intent = CallIntent(
            new_id(), session, rollout, 0, "chat", "policy", "keep", "d", "d", 1, digest, prompt.id, "",
            sampling_applied={}, parent_call_id=None, parent_evidence="none",
        )  # fmt: skip
        calls.intend(conn, intent, prompt)

    store.write(intend)
    (call,) = store.read(lambda conn: recent.calls_since(conn, time.time() - 60))
    assert call.open
    assert (call.tokens, call.seconds, call.worker) == (0, 0.0, "")


def test_rollouts_say_how_they_ended(store):
    run, _ = a_run(store, 3)
    first, second = claimed(store, run)
    store.write(
        lambda conn: rollouts.finish(
            conn, RolloutOutcome(first, StopReason.FINISHED, "valid", latencies={"run": 1.5})
        )
    )
    failure = RolloutOutcome(
        second, StopReason.SANDBOX_ERROR, "infrastructure_error", cause=Cause.SANDBOX_DIED
    )
    store.write(lambda conn: rollouts.fail(conn, failure, 1))
    found = {row.id: row for row in store.read(lambda conn: recent.rollouts_of(conn, [first, second]))}
    assert (found[first].status, found[first].latencies, found[first].run_id) == (
        "finished",
        {"run": 1.5},
        run,
    )
    assert (found[second].status, found[second].cause, found[second].latencies) == (
        "failed",
        "sandbox_died",
        {},
    )
    assert found[first].ended_at <= time.time()
    assert store.read(lambda conn: recent.running(conn, run)) == []
    assert store.read(lambda conn: recent.with_status(conn, run, "pending")) == 1
    assert store.read(lambda conn: recent.groups_in(conn, run, "train", ("open", "complete"))) == {
        "open": 1,
        "complete": 0,
    }


def test_the_ledger_is_read_from_where_one_stopped_and_for_one_policy(store):
    run, policy = a_run(store)
    first, second = claimed(store, run)
    record = StepRecord(version(1, 1), (), (TrainedRollout(first, 5, 0), TrainedRollout(second, 7, 1)), ())
    store.write(lambda conn: commit_step(conn, policy, record))
    found = store.read(lambda conn: recent.trained_since(conn, policy, ""))
    assert {(row.step, row.version, row.tokens, row.max_staleness) for row in found} == {
        (1, 1, 5, 0),
        (1, 1, 7, 1),
    }
    assert store.read(lambda conn: recent.trained_since(conn, policy, found[-1].id)) == []
    assert store.read(lambda conn: recent.trained_since(conn, new_id(), "")) == []


def test_the_newest_versions_leave_out_those_that_were_given_up(store):
    run, policy = a_run(store)
    assert store.read(lambda conn: recent.policy_of(conn, run, "policy")) == policy
    assert store.read(lambda conn: recent.policy_of(conn, run, "nobody")) is None
    for number in range(5):
        store.write(lambda conn, number=number: policies.publish(conn, policy, version(number, number)))
    store.write(lambda conn: policies.orphan_after(conn, policy, 3))
    assert [item.version for item in store.read(lambda conn: recent.newest_versions(conn, policy, 2))] == [
        2,
        3,
    ]


def test_no_look_scans_a_table(tmp_path):
    """Whatever a look asks, in whatever phase, SQLite answers from an index."""
    folder = filled(tmp_path / "run", 40)
    asked = []
    with TraceStore.open(folder.store_url()) as store:
        event.listen(store._engine, "before_cursor_execute", lambda *args: asked.append((args[2], args[3])))
        run = store.read(runs.only).id
        for status in ("evaluating_before", "training", "done"):
            store.write(lambda conn, status=status: runs.set_status(conn, run, status))
            observer = RunObserver(folder, store)
            observer.look()
            observer.look()
        reads = {statement: values for statement, values in asked if statement.startswith("SELECT")}
        plans = {}
        for statement, values in reads.items():
            plan = store.read(
                lambda conn, s=statement, v=values: conn.exec_driver_sql(f"EXPLAIN QUERY PLAN {s}", v).all()
            )
            plans[statement] = [row[3] for row in plan]
    assert len(plans) > 8
    scans = [
        (step, statement) for statement, plan in plans.items() for step in plan if step.startswith("SCAN")
    ]
    assert [scan for scan in scans if scan[0].split()[1] not in SMALL] == []


def test_a_look_sees_the_same_on_either_database(store, tmp_path):
    config = filled(tmp_path / "run", 4).config()
    elsewhere = config.model_copy(update={"store": config.store.model_copy(update={"url": store.url})})
    folder = RunFolder(tmp_path / "elsewhere")
    write_json(folder.config_path, elsewhere.model_dump(mode="json"))
    run = store.write(lambda conn: runs.add(conn, "look", {}, "0", "training"))
    policy = store.write(lambda conn: policies.register(conn, run, "policy"))
    store.write(lambda conn: fill(conn, run, policy, 40))
    observer = RunObserver(folder, store)
    seen = observer.look()
    assert (seen.running, seen.failed, seen.groups) == (16, 4, {"open": 4, "complete": 0, "dropped": 1})
    trained = {0: 16 * 36, 1: 16 * 36, 2: 4 * 36}
    assert dict(seen.staleness) == trained
    assert seen.rollouts_per_s > 0
    assert seen.tokens_per_s > 0
    assert dict(observer.look().staleness) == trained


def test_the_filled_store_is_one_that_this_code_would_write(tmp_path):
    folder = filled(tmp_path / "run", 8)
    with TraceStore.open(folder.store_url()) as store:
        assert store.read(lambda conn: conn.execute(text("PRAGMA foreign_key_check")).all()) == []
