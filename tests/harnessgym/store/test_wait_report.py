"""What a run waits for, read from a real database whose times are set back by known amounts."""

import pytest
from sqlalchemy import insert, update

from harnessgym.outcome.failure import Cause, StopReason
from harnessgym.store import leases, rollouts, runs, tables, wait_report, workers
from harnessgym.store.clock import now
from harnessgym.store.rollouts import GroupSpec, RolloutOutcome
from harnessgym.store.tables import new_id
from harnessgym.store.wait_report import Queue, UpdateLease
from harnessgym.store.workers import WorkerRow
from tests.harnessgym.store.recorded_runs import begin_run

BOTH = ["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)]


@pytest.fixture(params=["sqlite"])
def kind(request):
    """The kind of database, unless a test asks for both."""
    return request.param


@pytest.fixture
def recording(store):
    return begin_run(store)


def seconds(expected):
    """An age or a rest of time: the database's clock goes on while the test runs."""
    return pytest.approx(expected, abs=20.0)


def submit(recording, size=2, purpose="train"):
    """Submit a group that nobody claims. Returns its id."""
    spec = GroupSpec(
        recording.run_id, recording.task_id, recording.policy_id, purpose, recording.groups, 3, {},
        ("agent",) * size, "process", tuple(range(size)),
    )  # fmt: skip
    recording.groups += 1
    return recording.store.write(lambda conn: rollouts.submit(conn, spec))


def claim(recording, holder, limit, ttl_s=60.0):
    rows = recording.store.write(lambda conn: rollouts.claim(conn, recording.run_id, holder, ttl_s, limit))
    return [row.id for row in rows]


def set_rollouts(recording, ids, **values):
    table = tables.rollouts
    recording.store.write(
        lambda conn: conn.execute(update(table).where(table.c.id.in_(ids)).values(**values))
    )


def set_state(recording, group_id, state):
    recording.store.write(lambda conn: rollouts.set_group_state(conn, group_id, state))


def queue(recording):
    return recording.store.read(lambda conn: wait_report.queue(conn, recording.run_id))


def test_workers_are_listed_with_the_time_since_their_row_was_written(store, recording):
    for name in ("engine-0", "engine-1"):
        row = WorkerRow(name, recording.run_id, "embedded", f"http://{name}", 0, "ready")
        store.write(lambda conn, row=row: workers.upsert(conn, row))
    older = update(tables.workers).where(tables.workers.c.id == "engine-1")
    store.write(lambda conn: conn.execute(older.values(updated_at=now() - 500.0)))
    unchanged_s = store.read(wait_report.unchanged_s)
    assert unchanged_s == {"engine-0": seconds(0.0), "engine-1": seconds(500.0)}


def test_only_update_leases_that_have_not_expired_are_held(store):
    def write(conn):
        leases.acquire(conn, "update:p:1", "engine-1", 100.0)
        leases.acquire(conn, "update:p:0", "engine-0", 300.0)
        leases.acquire(conn, "node:r:node@1", "node@1", 100.0)
        conn.execute(insert(tables.leases).values(resource="update:p:2", holder="gone", expires=now() - 1.0))

    store.write(write)
    assert store.read(wait_report.update_leases) == [
        UpdateLease("update:p:0", "engine-0", seconds(300.0)),
        UpdateLease("update:p:1", "engine-1", seconds(100.0)),
    ]


def test_a_run_without_rollouts_has_an_empty_queue(recording):
    assert queue(recording) == Queue(0, 0, None, {}, {})


def test_running_rollouts_are_counted_by_node(recording):
    submit(recording, 5)
    claim(recording, "node-a", 2)
    claim(recording, "node-b", 1)
    assert queue(recording) == Queue(2, 0, None, {"node-a": 2, "node-b": 1}, {})


def test_rollouts_that_are_put_off_are_pending_and_the_first_of_them_has_a_time(recording):
    submit(recording, 3)
    first, second, _ = claim(recording, "node", 3)
    set_rollouts(recording, [first], status="pending", not_before=now() + 900.0)
    set_rollouts(recording, [second], status="pending", not_before=now() + 300.0)
    report = queue(recording)
    assert (report.pending, report.put_off, report.first_s) == (2, 2, seconds(300.0))


def test_a_rollout_whose_wait_is_over_is_not_put_off(recording):
    submit(recording, 2)
    late = claim(recording, "node", 1)
    set_rollouts(recording, late, status="pending", not_before=now() - 10.0)
    report = queue(recording)
    assert (report.pending, report.put_off, report.first_s) == (2, 0, None)


@pytest.mark.parametrize("kind", BOTH, indirect=True)
def test_nodes_with_expired_leases_are_silent_for_the_longest_of_them(recording):
    submit(recording, 4)
    first, second, third, _ = claim(recording, "node-a", 4)
    set_rollouts(recording, [first], lease_expires=now() - 40.0)
    set_rollouts(recording, [second], lease_expires=now() - 400.0)
    set_rollouts(recording, [third], holder="node-b")
    report = queue(recording)
    assert report.running == {"node-a": 3, "node-b": 1}
    assert report.silent == {"node-a": (2, seconds(400.0))}


def test_another_runs_rollouts_are_not_in_the_queue(store, recording):
    submit(recording, 2)
    assert queue(begin_run(store, "other")) == Queue(0, 0, None, {}, {})


@pytest.mark.parametrize("kind", BOTH, indirect=True)
def test_the_first_open_group_comes_with_the_complete_ones_before_it(store, recording):
    for state in ("complete", "dropped", "complete", "consumed"):
        set_state(recording, submit(recording), state)
    group_id = submit(recording, 3)
    set_state(recording, submit(recording), "complete")
    submit(recording)
    aged = update(tables.groups).where(tables.groups.c.id == group_id)
    store.write(lambda conn: conn.execute(aged.values(created_at=now() - 700.0)))
    group = store.read(lambda conn: wait_report.open_group(conn, recording.run_id, ("train",)))
    assert (group.id, group.ordinal, group.task_key, group.submitted_version) == (group_id, 4, "t0", 3)
    assert (group.size, group.complete_before, group.age_s) == (3, 2, seconds(700.0))


def test_an_open_group_of_another_purpose_or_run_is_not_waited_for(store, recording):
    submit(recording, purpose="before_greedy")
    other = begin_run(store, "other")

    def ask(run_id, *purposes):
        group = store.read(lambda conn: wait_report.open_group(conn, run_id, purposes))
        return None if group is None else group.ordinal

    assert ask(recording.run_id, "train") is None
    assert ask(other.run_id, "before_greedy") is None
    assert ask(recording.run_id, "train", "before_greedy") == 0


def test_groups_of_several_purposes_are_waited_for_one_purpose_after_the_other(store, recording):
    submit(recording, purpose="before_sampled")
    greedy = submit(recording, purpose="before_greedy")
    purposes = ("before_sampled", "before_greedy")
    group = store.read(lambda conn: wait_report.open_group(conn, recording.run_id, purposes))
    assert group.id == greedy


def test_complete_groups_do_not_include_consumed_ones(store, recording):
    for state in ("complete", "consumed", "complete", "dropped"):
        set_state(recording, submit(recording), state)
    set_state(recording, submit(recording, purpose="before_greedy"), "complete")

    def count(*purposes):
        return store.read(lambda conn: wait_report.complete_groups(conn, recording.run_id, purposes))

    assert count("train") == 2
    assert count("train", "before_greedy") == 3
    assert count("after_greedy") == 0


def unfinished(recording, group_id):
    return recording.store.read(lambda conn: wait_report.unfinished(conn, group_id))


def test_a_pending_rollout_has_neither_holder_nor_session_nor_call(recording):
    group_id = submit(recording, 2)
    claim(recording, "node", 1)
    running, pending = unfinished(recording, group_id)
    assert (pending.slot, pending.attempt, pending.status, pending.holder) == (1, 0, "pending", None)
    assert (pending.started_s, pending.opened_s, pending.sealed, pending.call) == (None, None, False, None)
    assert (running.slot, running.status, running.holder) == (0, "running", "node")
    assert (running.started_s, running.opened_s, running.call) == (seconds(0.0), None, None)


def test_ended_rollouts_are_left_out_and_the_next_attempt_stands_for_its_slot(recording):
    group_id = submit(recording, 3)
    finished, failed, cancelled = claim(recording, "node", 3)
    recording.finish([finished])
    outcome = RolloutOutcome(
        failed, StopReason.SANDBOX_ERROR, "infrastructure_error", cause=Cause.SANDBOX_DIED
    )
    recording.store.write(lambda conn: rollouts.fail(conn, outcome, 3))
    recording.store.write(lambda conn: rollouts.cancel(conn, [cancelled]))
    (again,) = unfinished(recording, group_id)
    assert again.id != failed
    assert (again.slot, again.attempt, again.status) == (1, 1, "pending")


@pytest.mark.parametrize("kind", BOTH, indirect=True)
def test_the_newest_session_and_its_last_call_are_shown(store, recording):
    group_id = submit(recording, 1)
    (rollout_id,) = claim(recording, "node", 1)
    set_rollouts(recording, [rollout_id], started_at=now() - 90.0)
    old, new = recording.session(rollout_id), recording.session(rollout_id)
    old.seal()
    first = new.call()
    last = new.call(after=first, status="intent")
    ages = {tables.sessions: {old.id: 800.0, new.id: 400.0}, tables.calls: {first: 300.0, last: 200.0}}
    for table, by_id in ages.items():
        for key, age in by_id.items():
            aged = update(table).where(table.c.id == key).values(created_at=now() - age)
            store.write(lambda conn, aged=aged: conn.execute(aged))
    (shown,) = unfinished(recording, group_id)
    assert (shown.started_s, shown.opened_s, shown.sealed) == (seconds(90.0), seconds(400.0), False)
    assert shown.call == (1, "intent", seconds(200.0))
    new.seal()
    assert unfinished(recording, group_id)[0].sealed is True


@pytest.mark.parametrize(
    ("config", "expected"), [({"trainer": {"groups_per_step": 2}}, {"groups_per_step": 2}), ({}, {})]
)
def test_the_trainers_settings_are_those_that_were_recorded(store, config, expected):
    run_id = store.write(lambda conn: runs.add(conn, "demo", config, "0", "training"))
    assert store.read(lambda conn: wait_report.trainer_settings(conn, run_id)) == expected
    assert store.read(lambda conn: wait_report.trainer_settings(conn, new_id())) == {}
