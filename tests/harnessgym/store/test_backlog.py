import pytest
from sqlalchemy import event, select, update

from harnessgym.errors import StoreError
from harnessgym.store import TraceStore, backlog, policies, rollouts, runs
from harnessgym.store.rollouts import GroupSpec
from harnessgym.store.tables import groups
from harnessgym.store.tables import rollouts as rollouts_table
from harnessgym.task import Task


class World:
    """A run's training groups."""

    def __init__(self, store):
        self.store = store
        self.run = store.write(lambda conn: runs.add(conn, "test", {}, "0", "training"))
        self.policy = store.write(lambda conn: policies.register(conn, self.run, "policy"))
        self.ordinal = 0

    def submit(self, state="complete", replaces=None):
        task = self.store.write(
            lambda conn: runs.add_task(conn, "set", Task(f"task {self.ordinal}", "Do it."))
        )
        spec = GroupSpec(
            self.run,
            task,
            self.policy,
            "train",
            self.ordinal,
            0,
            {},
            ("h", "h"),
            "process",
            (0, 1),
            replaces=replaces,
        )
        self.ordinal += 1
        group = self.store.write(lambda conn: rollouts.submit(conn, spec))
        self.store.write(lambda conn: rollouts.set_group_state(conn, group, state))
        return group

    def give_up(self, group, reason, version=4):
        return self.store.write(lambda conn: backlog.give_up(conn, group, reason, version))

    def ask(self, question, *more):
        return self.store.read(lambda conn: question(conn, self.run, *more))


@pytest.fixture
def world(url):
    with TraceStore.open(url) as store:
        yield World(store)


def test_what_stands_is_told_in_order_of_submission(world):
    names = [world.submit(state) for state in ("consumed", "open", "complete", "dropped", "open")]
    found = world.ask(backlog.standing)
    assert [(item.id, item.ordinal, item.complete) for item in found] == [
        (names[1], 1, False), (names[2], 2, True), (names[4], 4, False),
    ]  # fmt: skip


def test_only_a_complete_group_is_given_up_and_only_once(world):
    opened, consumed, complete = (world.submit(state) for state in ("open", "consumed", "complete"))
    assert [world.give_up(group, "too_stale") for group in (opened, consumed, complete, complete)] == [
        False,
        False,
        True,
        False,
    ]
    row = world.store.read(
        lambda conn: conn.execute(select(groups).where(groups.c.id == complete)).mappings().one()
    )
    assert (row["state"], row["given_up"], row["given_up_version"]) == ("dropped", "too_stale", 4)


def test_an_open_group_is_stopped_once_with_all_that_runs_of_it(world):
    opened, complete, other = world.submit("open"), world.submit(), world.submit("open")
    assert world.store.read(lambda conn: backlog.oldest_version(conn, opened)) is None
    claimed = world.store.write(lambda conn: rollouts.claim(conn, world.run, "node", 60.0, 1))
    assert [row.group_id for row in claimed] == [opened]

    def stop(group):
        return world.store.write(lambda conn: backlog.stop(conn, group, "requeued", 4))

    assert [stop(group) for group in (complete, opened, opened)] == [False, True, False]
    assert world.ask(backlog.given_up, 4) == {"requeued": 1}
    assert [item.ordinal for item in world.ask(backlog.requeued, 9)] == [0]
    statuses = select(rollouts_table.c.status).where(rollouts_table.c.group_id == opened)
    assert world.store.read(lambda conn: conn.execute(statuses).scalars().all()) == ["cancelled", "cancelled"]
    assert world.store.read(lambda conn: rollouts.not_running(conn, [claimed[0].id], "node")) == [
        claimed[0].id
    ]
    assert [item.id for item in world.ask(backlog.standing)] == [complete, other]


def test_what_a_step_gave_up_is_counted_by_reason(world):
    for reason, version in (("too_stale", 4), ("requeued", 4), ("requeued", 4), ("no_signal", 5)):
        world.give_up(world.submit(), reason, version)
    assert world.ask(backlog.given_up, 4) == {"too_stale": 1, "requeued": 2}
    assert world.ask(backlog.given_up, 5) == {"no_signal": 1}
    assert world.ask(backlog.too_few) == 0


def test_a_requeued_group_is_due_until_another_takes_its_place_and_only_one_can(world):
    first, second = world.submit(), world.submit()
    world.give_up(second, "requeued")
    world.give_up(first, "requeued")
    assert [(item.ordinal, item.task_key) for item in world.ask(backlog.requeued, 9)] == [
        (0, "task 0"),
        (1, "task 1"),
    ]
    assert [item.ordinal for item in world.ask(backlog.requeued, 1)] == [0]
    world.submit("open", replaces=0)
    assert [item.ordinal for item in world.ask(backlog.requeued, 9)] == [1]
    assert world.ask(backlog.replacements) == 1
    with pytest.raises(StoreError):
        world.submit("open", replaces=0)


def test_groups_given_up_by_the_trainer_are_no_failures(world):
    world.give_up(world.submit(), "no_signal")
    failed = world.submit("dropped")
    world.store.write(
        lambda conn: conn.execute(update(groups).where(groups.c.id == failed).values(given_up="too_few"))
    )
    assert world.ask(backlog.too_few) == 1


def test_what_was_given_up_is_found_without_a_look_at_all_groups(tmp_path):
    with TraceStore.create(f"sqlite:///{tmp_path}/t.db") as store:
        world, asked = World(store), []
        event.listen(store._engine, "before_cursor_execute", lambda *args: asked.append((args[2], args[3])))
        for question, *more in ((backlog.requeued, 9), (backlog.given_up, 4), (backlog.too_few,)):
            asked.clear()
            world.ask(question, *more)
            ((statement, values),) = [each for each in asked if each[0].startswith("SELECT")]
            found = store.read(
                lambda conn, s=statement, v=values: conn.exec_driver_sql(f"EXPLAIN QUERY PLAN {s}", v).all()
            )
            index = "groups USING INDEX ix_groups_state (run_id=? AND purpose=? AND state=?)"
            assert any(index in row[3] for row in found), found
