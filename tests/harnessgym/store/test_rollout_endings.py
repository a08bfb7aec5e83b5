"""Rollouts that are cancelled, set aside or run outside a node, and what is counted of the others."""

import pytest
from sqlalchemy import select, update

from harnessgym.errors import StoreError
from harnessgym.outcome.failure import Cause, StopReason
from harnessgym.store import rollout_states, rollouts, tables
from harnessgym.store.rollouts import GroupSpec, RolloutOutcome
from tests.harnessgym.store.recorded_runs import begin_run

BOTH = ["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)]


@pytest.fixture(params=["sqlite"])
def kind(request):
    """The kind of database, unless a test asks for both."""
    return request.param


@pytest.fixture
def recording(store):
    return begin_run(store)


def spec(recording, purpose="wrap", size=1):
    return GroupSpec(
        recording.run_id, recording.task_id, recording.policy_id, purpose, 0, 0, {}, ("agent",) * size,
        "none", tuple(range(size)),
    )  # fmt: skip


def state_of(recording, rollout_id):
    (state,) = recording.store.read(lambda conn: rollout_states.get(conn, [rollout_id]))
    return state


def group_state(recording, group_id):
    query = select(tables.groups.c.state).where(tables.groups.c.id == group_id)
    return recording.store.read(lambda conn: conn.execute(query).scalar_one())


def excluded(recording):
    table = tables.exclusions
    query = select(table.c.call_id, table.c.start, table.c.end, table.c.reason).order_by(table.c.call_id)
    return recording.store.read(lambda conn: [tuple(row) for row in conn.execute(query)])


def cancel(recording, *rollout_ids):
    return recording.store.write(lambda conn: rollouts.cancel(conn, rollout_ids, "Not needed."))


@pytest.mark.parametrize("kind", BOTH, indirect=True)
def test_a_cancelled_rollout_ends_at_once_and_its_tokens_are_excluded(recording):
    group_id, (first, second) = recording.group(2)
    call_id = recording.session(first).call(versions=(0, 0, 0))
    assert cancel(recording, first) == [first]
    state = state_of(recording, first)
    assert (state.status, state.stop_reason, state.cause) == (
        "cancelled",
        StopReason.CANCELLED,
        Cause.CANCELLED,
    )
    assert (state.verdict, state.detail) == (None, "Not needed.")
    assert state.ended_at is not None
    assert excluded(recording) == [(call_id, 0, 3, "cancelled")]
    assert group_state(recording, group_id) == "open"
    assert state_of(recording, second).status == "running"


def test_only_rollouts_that_have_not_ended_are_cancelled_and_each_once(recording):
    group_id, (finished, running) = recording.group(2)
    recording.finish([finished])
    assert cancel(recording, running, finished, running, "nowhere") == [running]
    assert cancel(recording, running) == []
    assert state_of(recording, finished).status == "finished"
    assert group_state(recording, group_id) == "dropped", "one graded rollout of two is too few"


def test_a_node_cannot_finish_or_fail_what_was_cancelled(recording):
    _, (rollout_id,) = recording.group(1)
    cancel(recording, rollout_id)
    outcome = RolloutOutcome(rollout_id, StopReason.FINISHED, "valid", {"reward": 1.0})
    failure = RolloutOutcome(rollout_id, StopReason.SANDBOX_ERROR, "infrastructure_error")
    assert not recording.store.write(lambda conn: rollouts.finish(conn, outcome))
    assert not recording.store.write(lambda conn: rollouts.fail(conn, failure, 3))
    state = state_of(recording, rollout_id)
    assert (state.status, state.rewards, state.continued_by) == ("cancelled", {}, None)


def test_calls_that_were_recorded_behind_a_cancellation_are_excluded_when_it_settles(recording):
    _, (rollout_id, other) = recording.group(2)
    session = recording.session(rollout_id)
    first = session.call(versions=(0,))
    cancel(recording, rollout_id)
    second = session.call(after=first, versions=(0, 0))
    session.call(status="intent")
    assert excluded(recording) == [(first, 0, 1, "cancelled")]
    recording.store.write(lambda conn: rollouts.settle(conn, rollout_id, {"run": 1.5}))
    assert excluded(recording) == [(first, 0, 1, "cancelled"), (second, 0, 2, "cancelled")]
    assert state_of(recording, rollout_id).latencies == {"run": 1.5}
    recording.session(other).call()
    recording.store.write(lambda conn: rollouts.settle(conn, other, {"run": 9.0}))
    assert len(excluded(recording)) == 2
    assert state_of(recording, other).latencies == {}


def test_tokens_keep_the_reason_that_excluded_them_first(recording):
    _, (rollout_id,) = recording.group(1)
    session = recording.session(rollout_id)
    first = session.call(versions=(0, 0))
    recording.store.write(lambda conn: rollouts.exclude(conn, rollout_id, "cancelled"))
    second = session.call(versions=(0,))
    recording.store.write(lambda conn: rollouts.exclude(conn, rollout_id, "group_dropped"))
    assert excluded(recording) == [(first, 0, 2, "cancelled"), (second, 0, 1, "group_dropped")]


def test_a_purpose_that_is_set_aside_keeps_its_rewards_under_another_name(recording):
    done, ids = recording.group(2, "after_greedy")
    recording.finish(ids)
    unended, (running, finished) = recording.group(2, "after_greedy")
    recording.finish([finished])
    _, (other,) = recording.group(1, "before_greedy")

    def set_aside(conn):
        return rollouts.retire(conn, recording.run_id, "after_greedy", "after_greedy@6")

    assert recording.store.write(set_aside) == 2
    assert state_of(recording, running).detail == "The run was extended before it had ended."
    assert (group_state(recording, done), group_state(recording, unended)) == ("complete", "dropped")
    assert state_of(recording, ids[0]).purpose == state_of(recording, running).purpose == "after_greedy@6"
    assert state_of(recording, other).purpose == "before_greedy"
    assert state_of(recording, other).status == "running"
    assert recording.store.write(set_aside) == 0


@pytest.mark.parametrize("kind", BOTH, indirect=True)
def test_a_rollout_outside_any_node_runs_at_once_at_the_next_ordinal(recording):
    ids = [
        recording.store.write(lambda conn: rollouts.start(conn, spec(recording), "wrap-7", 60.0))
        for _ in range(2)
    ]
    states = [state_of(recording, rollout_id) for rollout_id in ids]
    assert [(state.ordinal, state.status, state.slot) for state in states] == [
        (0, "running", 0),
        (1, "running", 0),
    ]
    assert all(state.started_at is not None for state in states)
    assert recording.store.read(lambda conn: rollouts.not_running(conn, ids, "wrap-7")) == []
    assert set(recording.store.read(lambda conn: rollouts.not_running(conn, ids, "node"))) == set(ids)


def test_a_dead_node_does_not_end_the_leases_of_others(store, recording):
    store.write(lambda conn: rollouts.submit(conn, spec(recording, "train", 3)))
    holders = ("node-1@a", "node-10@b", "wrap-7")
    claimed = {
        holder: store.write(lambda conn, h=holder: rollouts.claim(conn, recording.run_id, h, 60.0, 1))[0].id
        for holder in holders
    }

    def lost_after(node):
        store.write(lambda conn: rollouts.expire(conn, recording.run_id, node))
        return set(store.read(lambda conn: rollouts.lost(conn, recording.run_id)))

    assert lost_after("node") == lost_after("wrap-7") == set()
    assert lost_after("node-1") == {claimed["node-1@a"]}
    assert lost_after(None) == {claimed["node-1@a"], claimed["node-10@b"]}


def test_rollouts_that_ended_or_run_elsewhere_should_stop(store, recording):
    _, (mine, finished, cancelled) = recording.group(3)
    recording.finish([finished])
    cancel(recording, cancelled)
    ids = [mine, finished, cancelled]
    stopped = set(store.read(lambda conn: rollouts.not_running(conn, ids, "node")))
    assert stopped == {finished, cancelled}
    assert set(store.read(lambda conn: rollouts.not_running(conn, ids, "other"))) == set(ids)


def set_reward(recording, rollout_id, value):
    table = tables.rewards
    row = update(table).where(table.c.rollout_id == rollout_id).values(value=value)
    recording.store.write(lambda conn: conn.execute(row))


def test_the_best_training_rollouts_come_first_and_the_newest_of_equals(store, recording):
    _, ids = recording.group(4)
    _, (evaluated,) = recording.group(1, "before_greedy")
    for rollout_id, value in zip(ids, (0.5, 1.0, 0.25, 1.0), strict=True):
        recording.finish([rollout_id])
        set_reward(recording, rollout_id, value)
    recording.finish([evaluated])
    first, second, third, fourth = ids
    assert store.read(lambda conn: rollouts.best(conn, recording.run_id, 9)) == [fourth, second, first, third]
    assert store.read(lambda conn: rollouts.best(conn, recording.run_id, 2)) == [fourth, second]


def test_rewards_of_a_purpose_come_by_group_and_slot(store, recording):
    _, first = recording.group(2, "before_greedy")
    _, second = recording.group(2, "before_greedy")
    for place, rollout_id in enumerate((*reversed(second), first[1])):
        recording.finish([rollout_id])
        set_reward(recording, rollout_id, float(place))

    def rewards_of(purpose, channel="reward"):
        return store.read(lambda conn: rollouts.rewards_of(conn, recording.run_id, purpose, channel))

    assert rewards_of("before_greedy") == [2.0, 1.0, 0.0]
    assert rewards_of("after_greedy") == []
    with pytest.raises(StoreError, match="total"):
        rewards_of("before_greedy", "total")


@pytest.mark.parametrize("kind", BOTH, indirect=True)
def test_rollouts_and_groups_are_counted_by_state(store, recording):
    recording.finish(recording.group(2)[1])
    _, (running, cancelled) = recording.group(2)
    cancel(recording, cancelled)
    recording.group(3, "before_greedy")

    def count(question, *purpose):
        return store.read(lambda conn: question(conn, recording.run_id, *purpose))

    assert count(rollouts.rollout_states) == {"finished": 2, "running": 4, "cancelled": 1}
    assert count(rollouts.group_states, "train") == {"complete": 1, "open": 1}
    assert count(rollouts.unfinished, "train") == 1
    assert count(rollouts.unfinished, "before_greedy") == 3
    assert count(rollouts.unfinished, "after_greedy") == 0
    cancel(recording, running)
    assert count(rollouts.group_states, "train") == {"complete": 1, "dropped": 1}
