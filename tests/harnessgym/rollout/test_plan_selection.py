"""Plans whose groups are chosen by a selector, from what the store knows."""

import pytest
from sqlalchemy import func, select

from harnessgym.errors import ConfigError
from harnessgym.message import Message, chain_digests, context_digest
from harnessgym.outcome.failure import StopReason
from harnessgym.rollout.plan import GroupPlan
from harnessgym.scheduling.selection import Pick
from harnessgym.scheduling.selectors.uniform import UniformSettings
from harnessgym.store import backlog, calls, rollouts, sessions
from harnessgym.store.rollouts import RolloutOutcome
from harnessgym.store.tables import groups, new_id, tasks
from harnessgym.store.tables import rollouts as rollout_table
from harnessgym.traces.forest import Forest
from tests.harnessgym.rollout.planning import move, publish, submit, submitted


def select_with(plan, selector, **settings):
    told = plan.config.generate.model_copy(update={"selector": selector, "settings": settings})
    plan.config = plan.config.model_copy(update={"generate": told})


def grade(store, plan, reward):
    """End all rollouts that run or wait; `reward(task key, slot)`."""
    for row in store.write(lambda conn: rollouts.claim(conn, plan.run_id, "node", 60.0, 999)):
        outcome = RolloutOutcome(
            row.id, StopReason.FINISHED, "valid", {"reward": reward(row.task_key, row.slot)}
        )
        store.write(lambda conn, outcome=outcome: rollouts.finish(conn, outcome))


def sizes(store):
    """Of all training groups by ordinal: task and rollouts."""
    query = (
        select(tasks.c.key, groups.c.size)
        .join(tasks, tasks.c.id == groups.c.task_id)
        .where(groups.c.purpose == "train")
    )
    return store.read(lambda conn: [tuple(row) for row in conn.execute(query.order_by(groups.c.ordinal))])


def test_a_selector_decides_what_is_submitted_from_what_the_store_knows(make_plan):
    """Only one task can be solved: its groups shrink, the others' grow."""
    for selector, hard, easy in (("dars", 16, 4), ("dart", 4, 2)):
        store, plan = make_plan(steps=20, groups_per_step=5, group_size=4)
        select_with(plan, selector, **({"most": 16} if selector == "dars" else {}))
        for version in range(3):
            publish(store, plan, version)
            submit(store, plan)
            grade(store, plan, lambda task, _: float(task == "tiny/train/2"))
            move(store, plan, "complete", "consumed", 5)
        found = sizes(store)
        assert {size for _, size in found[:10]} == {4}, "submitted before anything was known"
        assert dict(found[10:]) == {f"tiny/train/{i}": easy if i == 2 else hard for i in range(5)}
        query = select(rollout_table.c.group_id, func.count()).group_by(rollout_table.c.group_id)
        counted = store.read(lambda conn, query=query: sorted(count for _, count in conn.execute(query)))
        assert counted == sorted(size for _, size in found)


@pytest.mark.parametrize("selector", ["vade", "insight", "gdro", "xrpo"])
def test_a_node_that_takes_over_submits_what_the_killed_one_would_have(make_plan, selector):
    """One goes on, the other is a new process before every look at the store."""

    def played(fresh):
        store, plan = make_plan(steps=6, groups_per_step=3, group_size=4)
        select_with(plan, selector)
        for version in range(6):
            publish(store, plan, version)
            config = plan.config
            plan = GroupPlan(plan.run_id, plan.policy_id, config, "process") if fresh else plan
            submit(store, plan)
            grade(store, plan, lambda task, slot: float((int(task[-1]) + slot) % 3 == 0))
            move(store, plan, "complete", "consumed", 3)
        return submitted(store)

    assert played(fresh=True) == played(fresh=False)


def test_rollouts_get_no_more_calls_than_the_longest_success_of_their_task(make_plan):
    """The limit is written where the group is; evaluations and tasks without a success have none."""
    store, plan = make_plan(steps=20, groups_per_step=5, group_size=2)
    plan.config = plan.config.model_copy(
        update={"control": plan.config.control.model_copy(update={"length_cap": True})}
    )
    publish(store, plan, 0)
    submit(store, plan)
    for row in store.write(lambda conn: rollouts.claim(conn, plan.run_id, "node", 60.0, 999)):
        number = int(row.task_key[-1])
        add_calls(store, row.id, number + row.slot + 1)
        reward = float(row.slot == 0 and number != 3)
        outcome = RolloutOutcome(row.id, StopReason.FINISHED, "valid", {"reward": reward})
        store.write(lambda conn, outcome=outcome: rollouts.finish(conn, outcome))
    move(store, plan, "complete", "consumed", 5)
    publish(store, plan, 1)
    submit(store, plan)
    submit(store, plan, "evaluating_after")
    query = select(groups.c.purpose, groups.c.ordinal, tasks.c.key, groups.c.sampling).join(
        tasks, tasks.c.id == groups.c.task_id
    )
    rows = store.read(lambda conn: conn.execute(query).all())
    caps = {
        key: sampling.get("turns")
        for purpose, ordinal, key, sampling in rows
        if purpose == "train" and ordinal >= 10
    }
    assert caps == {f"tiny/train/{number}": None if number == 3 else number + 1 for number in range(5)}
    assert all(
        "turns" not in sampling
        for purpose, ordinal, _, sampling in rows
        if purpose != "train" or ordinal < 10
    )


def add_calls(store, rollout_id, number):
    """Committed calls without tokens."""
    session = store.write(
        lambda conn: sessions.add(conn, rollout_id, new_id(), sampling={"temperature": 1.0})
    )
    forest, chain = Forest(session.id), chain_digests(context_digest(()), (Message("user", "hi"),))[-1]
    for ordinal in range(number):
        prompt, _ = forest.add_prompt([1, 2, 3 + ordinal], None)
        intent = calls.CallIntent(
            new_id(),
            session.id,
            rollout_id,
            ordinal,
            "chat",
            "policy",
            "keep",
            "d",
            chain,
            3,
            "h",
            prompt.id,
            "engine",
        )
        store.write(lambda conn, intent=intent, prompt=prompt: calls.intend(conn, intent, prompt))


def test_a_task_that_comes_again_has_as_many_rollouts_as_before(make_plan):
    store, plan = make_plan(steps=20, groups_per_step=5, group_size=4)
    select_with(plan, "dars", most=16)
    publish(store, plan, 0)
    submit(store, plan)
    grade(store, plan, lambda *_: 0.0)
    move(store, plan, "complete", "consumed", 5)
    publish(store, plan, 1)
    submit(store, plan)
    grade(store, plan, lambda *_: 0.0)
    again = store.read(lambda conn: backlog.standing(conn, plan.run_id))[-1]
    assert store.write(lambda conn: backlog.give_up(conn, again.id, "requeued", 1))
    before = sizes(store)
    assert submit(store, plan) == 1
    assert sizes(store)[-1] == before[again.ordinal]
    assert before[again.ordinal][1] == 16


@pytest.mark.parametrize("selector", ["uniform", "vade", "insight"])
def test_groups_of_one_rollout_are_complete_with_it_and_given_up_without(make_plan, selector):
    store, plan = make_plan(
        steps=2, groups_per_step=2, group_size=1, trainer={"algorithm": "ppo", "max_staleness": 0}
    )
    select_with(plan, selector)
    publish(store, plan, 0)
    assert submit(store, plan) == 2
    assert [size for _, size in sizes(store)] == [1, 1]
    lost, kept = store.write(lambda conn: rollouts.claim(conn, plan.run_id, "node", 60.0, 999))
    store.write(
        lambda conn: rollouts.fail(
            conn, RolloutOutcome(lost.id, StopReason.SANDBOX_ERROR, "infrastructure_error"), 1
        )
    )
    graded = RolloutOutcome(kept.id, StopReason.FINISHED, "valid", {"reward": 0.0})
    store.write(lambda conn: rollouts.finish(conn, graded))
    standing = store.read(lambda conn: backlog.standing(conn, plan.run_id))
    assert [(item.id, item.complete) for item in standing] == [(kept.group_id, True)]
    assert submit(store, plan) == 1, "another takes the place of the group that was given up"
    assert [size for _, size in sizes(store)] == [1, 1, 1]


class Single:
    """A selector that wants one rollout, whatever the run trains with."""

    settings = UniformSettings

    def __init__(self, _, pool):
        self.pool = pool

    def choose(self, number, wanted, visits):
        return [Pick(self.pool.tasks[0], 1)] * wanted


def test_a_group_of_one_is_refused_where_rollouts_are_compared(make_plan):
    for algorithm in ("grpo", "ppo"):
        store, plan = make_plan(steps=2, groups_per_step=2, group_size=4, trainer={"algorithm": algorithm})
        select_with(plan, f"{__name__}:Single")
        publish(store, plan, 0)
        if algorithm == "ppo":
            submit(store, plan)
            assert {size for _, size in sizes(store)} == {1}
        else:
            with pytest.raises(ConfigError, match=r"wants a group of one rollout .* let it choose two"):
                submit(store, plan)


def test_a_plan_with_a_selector_that_does_not_exist_is_refused(make_plan):
    _, plan = make_plan()
    select_with(plan, "nothing")
    with pytest.raises(ConfigError, match="no selector named 'nothing'"):
        GroupPlan(plan.run_id, plan.policy_id, plan.config, "process")
