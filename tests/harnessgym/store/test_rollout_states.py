"""States of rollouts: what is listed, in which order, and what each state adds up."""

import pytest
from sqlalchemy import update

from harnessgym.outcome.failure import Cause, StopReason
from harnessgym.store import rewards, rollout_states, rollouts, tables
from harnessgym.store.rewards import RewardRow
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


def fail(recording, rollout_id, max_attempts=3):
    """Fail an attempt. Returns the next attempt, claimed; None if its slot is given up."""
    outcome = RolloutOutcome(
        rollout_id, StopReason.SANDBOX_ERROR, "infrastructure_error", cause=Cause.SANDBOX_DIED
    )
    recording.store.write(lambda conn: rollouts.fail(conn, outcome, max_attempts))
    rows = recording.store.write(lambda conn: rollouts.claim(conn, recording.run_id, "node", 60.0, 1))
    return rows[0].id if rows else None


def state_of(recording, rollout_id):
    (state,) = recording.store.read(lambda conn: rollout_states.get(conn, [rollout_id]))
    return state


def listed(recording, **conditions):
    states = recording.store.read(lambda conn: rollout_states.listing(conn, recording.run_id, **conditions))
    return [state.id for state in states]


def test_states_come_oldest_first_without_those_that_do_not_exist(store, recording):
    _, (first, second) = recording.group(2)
    states = store.read(lambda conn: rollout_states.get(conn, [second, "nowhere", first]))
    assert [state.id for state in states] == sorted([first, second])
    assert store.read(lambda conn: rollout_states.get(conn, [])) == []


def test_a_state_names_its_task_group_and_slot(recording):
    recording.group(1, "before_greedy")
    group_id, (_, second) = recording.group(2)
    state = state_of(recording, second)
    assert (state.run_id, state.group_id, state.purpose) == (recording.run_id, group_id, "train")
    assert (state.ordinal, state.slot, state.attempt) == (1, 1, 0)
    assert (state.task_set, state.task, state.harness, state.sandbox) == ("lookup", "t0", "agent", "process")
    assert (state.seed, state.status, state.latencies, state.rewards) == (1, "running", {}, {})


def test_calls_of_all_sessions_are_counted_with_their_tokens(recording):
    _, (rollout_id, other) = recording.group(2)
    for _ in range(2):
        session = recording.session(rollout_id)
        session.call(versions=(0, 0, 0), after=session.call(versions=(0, 0)))
    session.call(status="intent")
    recording.session(other).call(versions=(0,))
    state = state_of(recording, rollout_id)
    assert (state.calls, state.tokens) == (5, 10)


def test_an_outside_models_tokens_are_those_it_reports(store, recording):
    _, (rollout_id,) = recording.group(1)
    session = recording.session(rollout_id)
    session.call(versions=(0, 0))
    reported = {session.call(versions=()): {"completion_tokens": 40}, session.call(versions=()): None}
    for call_id, usage in reported.items():
        row = update(tables.calls).where(tables.calls.c.id == call_id)
        store.write(lambda conn, row=row, usage=usage: conn.execute(row.values(usage=usage)))
    state = state_of(recording, rollout_id)
    assert (state.calls, state.tokens) == (3, 42)


def test_only_rewards_of_the_rollout_itself_are_its_rewards(store, recording):
    _, (rollout_id,) = recording.group(1)
    call_id = recording.session(rollout_id).call()
    recording.finish([rollout_id])
    rows = (
        RewardRow(rollout_id, "rollout", rollout_id, "cost.tokens", 4.0, "cost"),
        RewardRow(rollout_id, "turn", call_id, "reward", 0.25, "judge"),
    )
    for row in rows:
        store.write(lambda conn, row=row: rewards.add(conn, row))
    state = state_of(recording, rollout_id)
    assert state.rewards == {"reward": 1.0, "cost.tokens": 4.0}
    assert state.reward == 1.0


@pytest.mark.parametrize("kind", BOTH, indirect=True)
def test_an_attempt_is_continued_by_the_newest_at_its_slot(store, recording):
    _, (first, other) = recording.group(2)
    second = fail(recording, first)
    third = fail(recording, second)
    assert [state_of(recording, each).continued_by for each in (first, second, third, other)] == [
        third, third, None, None,
    ]  # fmt: skip
    assert [state_of(recording, each).attempt for each in (first, second, third)] == [0, 1, 2]
    latest = [
        store.read(lambda conn, each=each: rollout_states.latest(conn, each)) for each in (first, third)
    ]
    assert latest == [third, third]


@pytest.mark.parametrize("kind", BOTH, indirect=True)
def test_all_attempts_that_followed_are_listed_once(store, recording):
    _, (first, other) = recording.group(2)
    second = fail(recording, first)
    third = fail(recording, second)

    def later(*ids):
        return store.read(lambda conn: rollout_states.later_attempts(conn, ids))

    assert later(first) == later(first, second, other) == sorted([second, third])
    assert later(second) == [third]
    assert later(third, other) == later() == []


@pytest.mark.parametrize(("max_attempts", "final"), [(2, False), (1, True)])
def test_a_failed_attempt_is_final_if_no_other_follows(recording, max_attempts, final):
    _, (rollout_id,) = recording.group(1)
    fail(recording, rollout_id, max_attempts)
    assert state_of(recording, rollout_id).final is final


def test_a_cancelled_rollout_is_final_and_a_running_one_is_not(store, recording):
    _, (first, second) = recording.group(2)
    store.write(lambda conn: rollouts.cancel(conn, [first]))
    assert state_of(recording, first).final
    assert not state_of(recording, second).final


@pytest.mark.parametrize("kind", BOTH, indirect=True)
def test_a_listing_meets_every_condition_and_goes_on_after_an_id(store, recording):
    early, (first, second, third) = recording.group(3)
    _, (greedy,) = recording.group(1, "before_greedy")
    _, (elsewhere,) = begin_run(store, "other").group(1)
    recording.finish([second])
    everything = sorted([first, second, third, greedy])
    assert listed(recording) == everything
    assert listed(recording, status="running") == [each for each in everything if each != second]
    assert listed(recording, purpose="before_greedy") == [greedy]
    assert listed(recording, group_id=early, status="finished") == [second]
    assert listed(recording, group_id=early, purpose="before_greedy") == []
    assert listed(recording, harness="agent") == everything
    assert listed(recording, harness="another") == []
    assert listed(recording, limit=2) == everything[:2]
    assert listed(recording, after=everything[1]) == everything[2:]
    assert listed(recording, after=everything[1], limit=1) == [everything[2]]
    assert elsewhere not in listed(recording)


def test_pages_of_a_listing_hold_every_rollout_once(recording):
    _, ids = recording.group(7)
    pages = [listed(recording, limit=3)]
    while pages[-1]:
        pages.append(listed(recording, after=pages[-1][-1], limit=3))
    assert [len(page) for page in pages] == [3, 3, 1, 0]
    assert [each for page in pages for each in page] == sorted(ids)


def test_slots_are_the_newest_attempts_in_order_of_group_and_slot(store, recording):
    _, (first, second) = recording.group(2)
    _, (third, fourth) = recording.group(2)
    recording.group(1, "before_greedy")
    again = fail(recording, second)
    states = store.read(lambda conn: rollout_states.slots(conn, recording.run_id, "train"))
    assert [state.id for state in states] == [first, again, third, fourth]
    assert [(state.ordinal, state.slot) for state in states] == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_first_attempts_of_a_purpose_stay_the_same_when_they_are_retried(store, recording):
    _, (first, second) = recording.group(2)
    _, (greedy,) = recording.group(1, "before_greedy")
    fail(recording, first)

    def of_group(purpose):
        return store.read(lambda conn: rollout_states.of_group(conn, recording.run_id, purpose))

    assert of_group("train") == [first, second]
    assert of_group("before_greedy") == [greedy]
    assert of_group("after_greedy") == []


def set_times(store, rollout_id, **times):
    row = update(tables.rollouts).where(tables.rollouts.c.id == rollout_id).values(**times)
    store.write(lambda conn: conn.execute(row))


@pytest.mark.parametrize("kind", BOTH, indirect=True)
def test_changes_at_one_time_come_by_id_and_in_their_natural_order(store, recording):
    _, ids = recording.group(2)
    recording.finish(ids)
    low, high = sorted(ids)
    set_times(store, low, created_at=10.0, started_at=20.0, ended_at=20.0)
    set_times(store, high, created_at=20.0, started_at=20.0, ended_at=30.0)
    changes = store.read(lambda conn: rollout_states.changed(conn, recording.run_id, 20.0))
    assert [(at, state.id, change) for at, change, state in changes] == [
        (20.0, low, "started"),
        (20.0, low, "ended"),
        (20.0, high, "submitted"),
        (20.0, high, "started"),
        (30.0, high, "ended"),
    ]
    assert {state.status for _, _, state in changes} == {"finished"}


def test_changes_of_no_rollouts_are_none(store, recording):
    recording.group(2)
    assert store.read(lambda conn: rollout_states.changed(conn, recording.run_id, 0.0, [])) == []
    assert len(store.read(lambda conn: rollout_states.changed(conn, recording.run_id, 0.0))) == 4


def test_states_of_many_rollouts_are_read_in_portions(store, recording):
    spec = GroupSpec(
        recording.run_id, recording.task_id, recording.policy_id, "train", 9, 0, {}, ("agent",) * 1_201,
        "process", tuple(range(1_201)),
    )  # fmt: skip
    store.write(lambda conn: rollouts.submit(conn, spec))
    rows = store.write(lambda conn: rollouts.claim(conn, recording.run_id, "node", 60.0, 2_000))
    finished = [rows[0].id, rows[700].id, rows[-1].id]
    recording.finish(finished)
    states = store.read(lambda conn: rollout_states.slots(conn, recording.run_id, "train"))
    assert len(states) == 1_201
    assert sorted(state.id for state in states if state.reward == 1.0) == sorted(finished)
