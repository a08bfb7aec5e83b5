import pytest
from sqlalchemy import select

from harnessgym.errors import StoreError
from harnessgym.outcome.failure import Cause, StopReason
from harnessgym.store import TraceStore, policies, requests, rollout_states, rollouts, runs
from harnessgym.store.rollouts import GroupSpec, RolloutOutcome
from harnessgym.store.tables import rollouts as rollout_table
from harnessgym.task import Limits, Task
from harnessgym.tasks.payload import payload_of, task_of


class Desk:
    """A run that takes requests."""

    def __init__(self, url):
        self.store = TraceStore.open(url)
        self.run = self.store.write(lambda conn: runs.add(conn, "test", {}, "0", "training"))
        self.policy = self.store.write(lambda conn: policies.register(conn, self.run, "policy"))

    def ask(self, task, samples=2, name=None, **sampling):
        def write(conn):
            task_id = requests.add_task(conn, "inline", task.id, task.split, payload_of(task))
            spec = GroupSpec(
                self.run,
                task_id,
                self.policy,
                "",
                0,
                0,
                sampling,
                ("pi",) * samples,
                "process",
                tuple(range(samples)),
            )
            return requests.submit(conn, spec, name)

        return self.store.write(write)

    def claim(self, limit=99):
        return self.store.write(lambda conn: rollouts.claim(conn, self.run, "node", 60.0, limit))

    def end(self, row, **values):
        plain = {"stop_reason": StopReason.FINISHED, "verdict": "valid", "rewards": {"reward": 1.0}}
        outcome = RolloutOutcome(row.id, **{**plain, **values})
        return self.store.write(lambda conn: rollouts.finish(conn, outcome))

    def fail(self, row, attempts=3, wait_s=0.0):
        outcome = RolloutOutcome(
            row.id, StopReason.SANDBOX_ERROR, "infrastructure_error", cause=Cause.SANDBOX_DIED
        )
        return self.store.write(lambda conn: rollouts.fail(conn, outcome, attempts, wait_s))

    def cancel(self, *ids):
        return self.store.write(lambda conn: rollouts.cancel(conn, ids))

    def states(self, *ids):
        return self.store.read(lambda conn: rollout_states.get(conn, ids))

    def changed(self, since=0.0, ids=None):
        return self.store.read(lambda conn: rollout_states.changed(conn, self.run, since, ids))


@pytest.fixture
def desk(url):
    made = Desk(url)
    yield made
    made.store.close()


def test_a_task_comes_back_from_the_store_as_it_was_asked_for(desk):
    task = Task(
        "a",
        "Do.",
        files={"x": "1"},
        limits=Limits(wall_s=3.0, disk_mb=7),
        needs=frozenset({"disk"}),
        metadata={"n": [1]},
    )
    desk.ask(task)
    for row in desk.claim():
        assert task_of(row.task_payload) == task
        assert (row.task_set, row.task_key) == ("inline", "a")


def test_tasks_of_one_id_that_differ_in_their_limits_are_two(desk):
    desk.ask(Task("a", "Do."), 1)
    desk.ask(Task("a", "Do.", limits=Limits(wall_s=1.0)), 1)
    desk.ask(Task("a", "Do."), 1)
    assert [task_of(row.task_payload).limits.wall_s for row in desk.claim()] == [60.0, 1.0, 60.0]
    assert len({state.group_id for state in desk.states(*(change[2].id for change in desk.changed()))}) == 3


def test_a_named_group_is_made_once(desk):
    task = Task("a", "Do.")
    first, again = desk.ask(task, name="g", temperature=1.0), desk.ask(task, name="g", temperature=1.0)
    assert (first.rollout_ids, first.new, again.new) == (again.rollout_ids, True, False)
    for other in ((task, 3), (task, 2, "g"), (Task("b", "Do."), 2)):
        with pytest.raises(StoreError, match="group 'g' already"):
            desk.ask(other[0], other[1], name="g", temperature=0.0 if len(other) == 3 else 1.0)


def test_a_failed_attempt_is_continued_after_its_wait(desk):
    asked = desk.ask(Task("a", "Do."), 1)
    (row,) = desk.claim()
    assert desk.fail(row, wait_s=600.0)
    assert desk.claim() == []
    (state,) = desk.states(asked.rollout_ids[0])
    assert (state.cause, state.final) == ("sandbox_died", False)
    due = rollout_table.update().where(rollout_table.c.id == state.continued_by).values(not_before=1.0)
    desk.store.write(lambda conn: conn.execute(due))
    (again,) = desk.claim()
    assert (again.id, again.attempt) == (state.continued_by, 1)
    assert desk.store.read(lambda conn: rollout_states.latest(conn, asked.rollout_ids[0])) == again.id
    assert desk.store.read(lambda conn: rollout_states.latest(conn, "nothing")) is None


def test_a_state_says_what_there_is(desk):
    desk.ask(Task("a", "Do."), 2)
    (one, other) = desk.claim()
    desk.end(
        one,
        latencies={"run": 2.5},
        grading={"tests": 3},
        cause=Cause.TURN_LIMIT,
        stop_reason=StopReason.TURN_LIMIT,
    )
    (state,) = desk.states(one.id)
    assert (state.status, state.reward, state.latencies, state.grading) == (
        "finished",
        1.0,
        {"run": 2.5},
        {"tests": 3},
    )
    assert (state.cause, state.final, state.calls, state.tokens) == ("turn_limit", True, 0, 0)
    assert state.created_at <= state.started_at <= state.ended_at
    (running,) = desk.states(other.id)
    assert (running.status, running.reward, running.final, running.grading) == ("running", None, False, None)
    query = select(rollout_table.c.id).where(rollout_table.c.grading.is_(None))
    assert desk.store.read(lambda conn: conn.execute(query).scalars().all()) == [other.id]


@pytest.mark.parametrize(("column", "what"), [("stop_reason", "stop reason"), ("cause", "cause")])
def test_a_name_that_a_newer_version_wrote_is_refused_by_name(desk, column, what):
    desk.ask(Task("a", "Do."), 2)
    one, other = desk.claim()
    desk.end(one, cause=Cause.TURN_LIMIT, stop_reason=StopReason.TURN_LIMIT)
    (state,) = desk.states(one.id)
    assert state.stop_reason is StopReason.TURN_LIMIT
    assert state.cause is Cause.TURN_LIMIT
    newer = rollout_table.update().where(rollout_table.c.id == one.id).values({column: "bored"})
    desk.store.write(lambda conn: conn.execute(newer))
    with pytest.raises(StoreError, match=f"{one.id} has the {what} 'bored', .* A newer version wrote it"):
        desk.states(one.id)
    assert desk.states(other.id)[0].cause is None


@pytest.mark.parametrize("wrong", [{"stop_reason": "finished"}, {"cause": "sandbox_lost"}])
def test_an_outcome_takes_no_name_that_is_only_text(wrong):
    with pytest.raises(AssertionError, match=r"finished|sandbox_lost"):
        RolloutOutcome("r", **{"stop_reason": StopReason.FINISHED, "verdict": "valid", **wrong})


def test_changes_come_in_order_of_time_from_a_moment_on(desk):
    asked = desk.ask(Task("a", "Do."), 2)
    rows = desk.claim()
    desk.end(rows[1])
    desk.cancel(rows[0].id)
    kinds = [(kind, state.slot) for _, kind, state in desk.changed()]
    assert sorted(kinds[:2]) == [("submitted", 0), ("submitted", 1)]
    assert sorted(kinds[2:4]) == [("started", 0), ("started", 1)]
    assert kinds[4:] == [("ended", 1), ("ended", 0)]
    times = [at for at, _, _ in desk.changed()]
    assert times == sorted(times)
    assert [kind for _, kind, _ in desk.changed(times[4])] == ["ended", "ended"]
    assert {state.id for _, _, state in desk.changed(ids=[asked.rollout_ids[0]])} == {asked.rollout_ids[0]}
    assert desk.changed(times[5] + 1.0) == []


def test_cancelled_slots_close_their_group(desk):
    asked = desk.ask(Task("a", "Do."), 3)
    (one, other) = desk.claim(2)
    desk.end(one)
    desk.end(other)
    assert desk.store.read(lambda conn: rollouts.group_states(conn, desk.run, "request")) == {"open": 1}
    assert desk.cancel(*asked.rollout_ids) == [asked.rollout_ids[2]]
    assert desk.store.read(lambda conn: rollouts.group_states(conn, desk.run, "request")) == {"complete": 1}
    assert desk.claim() == []
