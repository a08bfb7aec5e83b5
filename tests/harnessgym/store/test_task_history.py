"""What a run's groups say of their tasks, read at once and bit by bit."""

from functools import partial

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harnessgym.errors import StoreError
from harnessgym.outcome.failure import StopReason
from harnessgym.store import TraceStore, policies, rollouts, runs
from harnessgym.store.rollouts import GroupSpec, RolloutOutcome
from harnessgym.store.task_history import Visit, Visits, visits
from harnessgym.task import Task


class World:
    """A run whose groups end as they are told to."""

    def __init__(self, store):
        self.store = store
        self.run = store.write(lambda conn: runs.add(conn, "test", {}, "0", "training"))
        self.policy = store.write(lambda conn: policies.register(conn, self.run, "policy"))
        self.number = 0

    def submit(self, task, size=2, *, version=0, replaces=None, purpose="train"):
        task_id = self.store.write(lambda conn: runs.add_task(conn, "set", Task(task, "Do it.")))
        spec = GroupSpec(
            self.run, task_id, self.policy, purpose, self.number, version, {}, ("h",) * size, "process", (0,) * size,
            replaces=replaces,
        )  # fmt: skip
        self.number += 1
        self.store.write(lambda conn: rollouts.submit(conn, spec))
        return self.store.write(lambda conn: rollouts.claim(conn, self.run, "node", 60.0, size))

    def end(self, row, reward, verdict="valid"):
        given = {} if reward is None else {"reward": reward, "style": 9.0}
        outcome = RolloutOutcome(row.id, StopReason.FINISHED, verdict, given)
        assert self.store.write(partial(rollouts.finish, outcome=outcome))

    def visits(self, first=0):
        return self.store.read(lambda conn: visits(conn, self.run, first))


@pytest.fixture
def world(url):
    with TraceStore.open(url) as store:
        yield World(store)


def test_a_visit_has_the_rewards_of_its_graded_rollouts_once_all_have_ended(world):
    rows = world.submit("a", 3, version=4)
    for row, reward in zip(rows[:2], (1.0, 0.0), strict=True):
        world.end(row, reward)
    assert world.visits() == [Visit("a", 3, 4, open=True)]
    world.end(rows[2], 0.5)
    assert world.visits() == [Visit("a", 3, 4, (1.0, 0.0, 0.5))]


def test_what_is_tampered_with_is_a_failure_and_what_failed_is_nothing(world):
    cheat, broken, good = world.submit("a", 3)
    world.end(cheat, 0.0, "tampered")
    outcome = RolloutOutcome(broken.id, StopReason.SANDBOX_ERROR, "infrastructure_error")
    assert world.store.write(lambda conn: rollouts.fail(conn, outcome, 1))
    world.end(good, 1.0)
    assert world.visits() == [Visit("a", 3, 0, (0.0, 1.0))]


def test_a_graded_rollout_without_a_reward_is_an_error_once_its_group_has_ended(world):
    first, second = world.submit("a", 2)
    world.end(first, None)
    assert world.visits() == [Visit("a", 2, 0, open=True)]
    world.end(second, 1.0)
    with pytest.raises(
        StoreError, match=rf"Rollout {first.id} finished without a reward under the channel 'reward'"
    ):
        world.visits()


def test_groups_given_up_are_evidence_and_evaluations_are_not(world):
    for row in world.submit("a", 2):
        world.end(row, 1.0)
    group = world.store.read(lambda conn: rollouts.complete_groups(conn, world.run, "train", 1))[0].id
    world.store.write(lambda conn: rollouts.set_group_state(conn, group, "dropped"))
    for row in world.submit("a", 2, replaces=0):
        world.end(row, 0.0)
    world.submit("b", 2, purpose="before_greedy")
    assert world.visits() == [Visit("a", 2, 0, (1.0, 1.0)), Visit("a", 2, 0, (0.0, 0.0), fresh=False)]
    assert world.visits(first=1) == world.visits()[1:]


def test_a_group_of_which_nobody_was_graded_has_no_rewards(world):
    for row in world.submit("a", 2):
        world.store.write(lambda conn, row=row: rollouts.cancel(conn, [row.id]))
    assert world.visits() == [Visit("a", 2, 0)]


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(moves=st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=12))
def test_whoever_has_looked_before_sees_what_a_newcomer_sees(world, moves):
    """In whatever order groups end, and however often somebody looks in between."""
    own = World(world.store)
    kept, running = Visits(own.run), []
    for submits, number in moves:
        if submits or not running:
            running += own.submit(f"t{number % 3}", 2)
        else:
            own.end(running.pop(number % len(running)), float(number % 2))
        assert list(own.store.read(kept.read)) == own.visits()
