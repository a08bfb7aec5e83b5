import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import select

from harnessgym.errors import StoreError
from harnessgym.outcome.failure import Cause, StopReason
from harnessgym.store import TraceStore, policies, rewards, rollouts, runs
from harnessgym.store.rewards import RewardRow
from harnessgym.store.rollouts import GroupSpec, RolloutOutcome
from harnessgym.store.tables import groups
from harnessgym.store.tables import rollouts as rollout_table
from harnessgym.task import Task


class World:
    """A run and its rollouts."""

    def __init__(self, store):
        self.store = store
        self.run = self.store.write(lambda conn: runs.add(conn, "test", {}, "0", "training"))
        self.policy = self.store.write(lambda conn: policies.register(conn, self.run, "policy"))
        self.task = self.store.write(lambda conn: runs.add_task(conn, "set", Task("task", "Do it.")))
        self.ordinal = 0

    def submit(self, size, purpose="train", **more):
        names, seeds = ("pi",) * size, tuple(range(size))
        spec = GroupSpec(
            self.run,
            self.task,
            self.policy,
            purpose,
            self.ordinal,
            3,
            {"temperature": 1.0},
            names,
            "process",
            seeds,
            **more,
        )
        self.ordinal += 1
        return self.store.write(lambda conn: rollouts.submit(conn, spec))

    def claim(self, limit=99, ttl_s=60.0, holder="node"):
        return self.store.write(lambda conn: rollouts.claim(conn, self.run, holder, ttl_s, limit))

    def finish(self, row, reward=1.0, verdict="valid", channel="reward"):
        outcome = RolloutOutcome(
            row.id, StopReason.FINISHED, verdict, {channel: reward}, latencies={"run": 0.5}
        )
        return self.store.write(lambda conn: rollouts.finish(conn, outcome))

    def fail(self, row, max_attempts=3, cause=None):
        outcome = RolloutOutcome(
            row.id, StopReason.NO_CALLS, "infrastructure_error", detail="why", cause=cause
        )
        return self.store.write(lambda conn: rollouts.fail(conn, outcome, max_attempts))

    def lost(self):
        return self.store.read(lambda conn: rollouts.lost(conn, self.run))

    def state(self, group):
        return self.store.read(
            lambda conn: conn.execute(select(groups.c.state).where(groups.c.id == group)).scalar_one()
        )

    def rows(self):
        order = rollout_table.c.slot, rollout_table.c.attempt
        query = select(rollout_table).where(rollout_table.c.run_id == self.run).order_by(*order)
        return self.store.read(lambda conn: list(conn.execute(query).mappings()))

    def complete(self, purpose="train", limit=99):
        return self.store.read(lambda conn: rollouts.complete_groups(conn, self.run, purpose, limit))


@pytest.fixture
def world(store):
    return World(store)


def test_a_claim_leases_oldest_groups_first_with_what_they_fix(world):
    first, second = world.submit(2), world.submit(2)
    assert [(row.group_id, row.slot) for row in world.claim(3)] == [(first, 0), (first, 1), (second, 0)]
    (row,) = world.claim(3)
    assert (row.group_id, row.slot, row.seed, row.attempt, row.task_key) == (second, 1, 1, 0, "task")
    assert (row.purpose, row.sampling, row.submitted_version, row.harness) == (
        "train",
        {"temperature": 1.0},
        3,
        "pi",
    )
    assert world.claim() == []


def test_holders_that_race_never_share_a_rollout(world):
    for _ in range(20):
        world.submit(3)
    taken, stores = [], [TraceStore.open(world.store.url) for _ in range(4)]
    barrier = threading.Barrier(4)

    def take(store, name):
        barrier.wait()
        while got := store.write(lambda conn: rollouts.claim(conn, world.run, name, 60.0, 2)):
            taken.extend((row.id, name) for row in got)

    threads = [threading.Thread(target=take, args=(store, f"n{i}")) for i, store in enumerate(stores)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for store in stores:
        store.close()
    assert len(taken) == len({rollout for rollout, _ in taken}) == 60
    holders = {row["id"]: row["holder"] for row in world.rows()}
    assert holders == dict(taken)


def test_a_lease_that_runs_out_is_lost_until_it_is_renewed(world):
    world.submit(2)
    kept, silent = world.claim(ttl_s=-1.0)
    assert set(world.lost()) == {kept.id, silent.id}
    world.store.write(lambda conn: rollouts.renew(conn, [kept.id, silent.id], "another", 60.0))
    assert set(world.lost()) == {kept.id, silent.id}
    world.store.write(lambda conn: rollouts.renew(conn, [kept.id], "node", 60.0))
    assert world.lost() == [silent.id]


def test_all_leases_of_a_dead_node_end_at_once(world):
    world.submit(2)
    rows = world.claim()
    assert world.lost() == []
    world.store.write(lambda conn: rollouts.expire(conn, world.run))
    assert set(world.lost()) == {row.id for row in rows}


def test_a_rollout_is_ended_once(world):
    group = world.submit(2)
    one, two = world.claim()
    assert world.finish(one)
    assert not world.finish(one, reward=0.0)
    assert not world.fail(one)
    assert world.state(group) == "open"
    assert world.finish(two, reward=0.5)
    assert world.state(group) == "complete"
    assert [member.reward for member in world.complete()[0].members] == [1.0, 0.5]


def test_a_node_that_lost_its_lease_cannot_end_what_runs_again_elsewhere(world):
    group = world.submit(2)
    late, other = world.claim(ttl_s=-1.0)
    world.fail(late)
    (again,) = world.claim(holder="second")
    assert (again.slot, again.attempt, again.seed) == (late.slot, 1, late.seed)
    assert not world.finish(late)
    assert world.finish(again)
    assert world.finish(other)
    assert world.state(group) == "complete"
    assert {member.rollout_id for member in world.complete()[0].members} == {again.id, other.id}


def test_an_infrastructure_error_keeps_its_row_and_its_reason(world):
    world.submit(2)
    row, _ = world.claim()
    world.fail(row)
    kept, fresh, _ = world.rows()
    assert (kept["status"], kept["verdict"], kept["stop_reason"], kept["detail"]) == (
        "failed",
        "infrastructure_error",
        "no_calls",
        "why",
    )
    assert (fresh["status"], fresh["attempt"], fresh["slot"], fresh["verdict"]) == (
        "pending",
        1,
        kept["slot"],
        None,
    )


def test_attempts_that_dead_nodes_took_along_are_not_counted(world):
    world.submit(1)
    lost, own = Cause.NODE_LOST, Cause.SANDBOX_DIED
    for cause in (lost, lost, own, lost, own):
        (row,) = world.claim()
        assert world.fail(row, max_attempts=2, cause=cause)
    assert world.claim() == []
    assert [row["attempt"] for row in world.rows()] == [0, 1, 2, 3, 4]


def test_a_slot_is_given_up_after_its_attempts_and_the_group_goes_on_reduced(world):
    group = world.submit(3)
    broken, *good = world.claim()
    for row in good:
        world.finish(row)
    for attempt in range(3):
        assert world.state(group) == "open"
        assert world.fail(broken, max_attempts=3)
        if attempt < 2:
            (broken,) = world.claim()
    assert world.claim() == []
    assert world.state(group) == "complete"
    assert [member.slot for member in world.complete()[0].members] == [1, 2]


def test_a_group_with_one_rollout_left_is_dropped(world):
    group = world.submit(3)
    one, two, three = world.claim()
    world.finish(one)
    world.fail(two, max_attempts=1)
    world.fail(three, max_attempts=1)
    assert world.state(group) == "dropped"
    assert world.complete() == []


def test_a_group_of_one_is_complete_with_one(world):
    group, lost = world.submit(1, "before_greedy"), world.submit(1, "before_greedy")
    one, two = world.claim()
    world.finish(one)
    world.fail(two, max_attempts=1)
    assert (world.state(group), world.state(lost)) == ("complete", "dropped")
    assert [found.id for found in world.complete("before_greedy")] == [group]


def test_a_tampered_rollout_is_a_member_with_its_verdict(world):
    world.submit(2)
    one, two = world.claim()
    world.finish(one, reward=0.0, verdict="tampered")
    world.finish(two)
    assert [(member.verdict, member.reward) for member in world.complete()[0].members] == [
        ("tampered", 0.0),
        ("valid", 1.0),
    ]


def test_groups_are_handed_on_in_order_and_never_past_a_gap(world):
    first, second, third = (world.submit(1) for _ in range(3))
    one, two, three = world.claim()
    world.finish(three)
    world.finish(two)
    assert world.complete() == []
    world.finish(one)
    assert [group.id for group in world.complete()] == [first, second, third]
    assert [group.id for group in world.complete(limit=2)] == [first, second]
    world.store.write(lambda conn: rollouts.set_group_state(conn, first, "dropped"))
    assert [group.id for group in world.complete()] == [second, third]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    size=st.integers(2, 4),
    attempts=st.integers(1, 3),
    ends=st.lists(st.sampled_from("ffl"), max_size=14),
    data=st.data(),
)
def test_a_group_always_ends_and_is_complete_exactly_with_two_or_more(store, size, attempts, ends, data):
    """Finish, fail or lose in any order: no slot is forgotten, none has two verdicts, and the stated rule
    decides.
    """
    world = World(store)
    group, running, tries = world.submit(size), [], dict.fromkeys(range(size), 0)
    for end in [*ends, *"f" * 20]:
        running += world.claim()
        if not running:
            break
        row = running.pop(data.draw(st.integers(0, len(running) - 1)))
        if end == "f" and data.draw(st.booleans()):
            world.finish(row)
        else:
            tries[row.slot] += 1
            world.fail(row, attempts)
    while running := [*running, *world.claim()]:
        world.finish(running.pop())
    finished = [row for row in world.rows() if row["status"] == "finished"]
    assert len({row["slot"] for row in finished}) == len(finished)
    assert world.state(group) == ("complete" if len(finished) >= 2 else "dropped")
    for slot, count in tries.items():
        assert count <= attempts
        assert count == attempts or slot in {row["slot"] for row in finished}


@pytest.mark.parametrize(("finished", "expected"), [(3, ("complete", None)), (2, ("dropped", "too_few"))])
def test_a_group_with_fewer_graded_members_than_it_was_told_is_given_up(world, finished, expected):
    group = world.submit(4, min_members=3)
    for place, row in enumerate(world.claim()):
        if place < finished:
            world.finish(row)
        else:
            world.fail(row, max_attempts=1)
    query = select(groups.c.state, groups.c.given_up).where(groups.c.id == group)
    assert world.store.read(lambda conn: tuple(conn.execute(query).one())) == expected
    assert [(row.size, len(row.members)) for row in world.complete()] == ([(4, 3)] if finished == 3 else [])


def test_a_missing_reward_is_an_error_and_not_zero(world):
    group = world.submit(2)
    graded, ungraded = world.claim()
    world.finish(graded, 1.0)
    world.finish(ungraded, 1.0, channel="speed")
    missing = rf"Rollout {ungraded.id} finished without a reward under the channel 'reward'"
    with pytest.raises(StoreError, match=missing):
        world.complete()
    with pytest.raises(StoreError, match=missing):
        world.store.read(lambda conn: rollouts.group(conn, group))
    with pytest.raises(StoreError, match=missing):
        world.store.read(lambda conn: rollouts.rewards_of(conn, world.run, "train"))
    reward = RewardRow(ungraded.id, "rollout", ungraded.id, "reward", 0.0, "grader")
    world.store.write(lambda conn: rewards.add(conn, reward))
    (complete,) = world.complete()
    assert [member.reward for member in complete.members] == [1.0, 0.0]
    assert world.store.read(lambda conn: rollouts.rewards_of(conn, world.run, "train")) == [1.0, 0.0]


def test_what_is_trained_on_is_the_total_where_there_is_one(world):
    for purpose in ("train", "after_sampled"):
        world.submit(3, purpose)
    for row in world.claim():
        verdict = "tampered" if row.slot == 2 else "valid"
        graded, total = (1.0, -0.5 * row.slot) if verdict == "valid" else (0.0, 0.0)
        summed = RewardRow(row.id, "rollout", row.id, "total", total, "weights")
        outcome = RolloutOutcome(row.id, StopReason.FINISHED, verdict, {"reward": graded}, scores=(summed,))
        assert world.store.write(lambda conn, outcome=outcome: rollouts.finish(conn, outcome))
    (trained,), (evaluated,) = world.complete(), world.complete("after_sampled")
    assert [member.reward for member in trained.members] == [
        0.0,
        -0.5,
        -0.5,
    ]  # tampering is no way around a penalty
    assert [member.success for member in trained.members] == [1.0, 1.0, 0.0]
    assert [member.reward for member in evaluated.members] == [1.0, 1.0, 0.0]
    assert world.store.read(lambda conn: rollouts.rewards_of(conn, world.run, "after_sampled", "total")) == [
        0.0,
        -0.5,
        0.0,
    ]


def test_a_total_that_only_some_have_is_an_error(world):
    world.submit(2)
    first, second = world.claim()
    world.finish(second)
    summed = RewardRow(first.id, "rollout", first.id, "total", 0.5, "weights")
    outcome = RolloutOutcome(first.id, StopReason.FINISHED, "valid", {"reward": 1.0}, scores=(summed,))
    world.store.write(lambda conn: rollouts.finish(conn, outcome))
    with pytest.raises(
        StoreError, match=f"Rollout {second.id} finished without a reward under the channel 'total'"
    ):
        world.complete()
