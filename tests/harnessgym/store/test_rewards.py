"""Rewards of every unit: written once, for what is there, and never for a rollout that failed."""

import math

import pytest
from sqlalchemy import select

from harnessgym.errors import StoreError
from harnessgym.outcome.failure import StopReason
from harnessgym.store import agents, calls, events, new_id, rewards, rollouts, sessions
from harnessgym.store.agents import AgentRow
from harnessgym.store.calls import CallOutcome, Segment
from harnessgym.store.events import EventRow
from harnessgym.store.rewards import RewardRow
from harnessgym.store.rollouts import RolloutOutcome
from harnessgym.store.tables import calls as calls_table
from harnessgym.store.tables import rollouts as rollouts_table


@pytest.fixture
def give(store, rollout_id):
    def give(unit, target, value=1.0, channel="task", source="test", detail=None):
        row = RewardRow(rollout_id, unit, target, channel, value, source, detail)
        return store.write(lambda conn: rewards.add(conn, row))

    return give


@pytest.fixture
def stored(store, rollout_id):
    return lambda: store.read(lambda conn: rewards.of_rollout(conn, rollout_id))


@pytest.fixture
def targets(store, rollout_id, add_call):
    """One target of every unit, in one rollout."""

    def work(conn):
        session = sessions.add(conn, rollout_id, "key", sampling={}).id
        agent = AgentRow(new_id(), rollout_id, session, "main", "main", None, "content")
        agents.add(conn, agent)
        made = {"agent": agent.id, "rollout": rollout_id}
        for kind in ("message", "tool_call"):
            event = EventRow(rollout_id, kind)
            events.add(conn, event)
            made[kind] = event.id
        group = conn.execute(
            select(rollouts_table.c.group_id).where(rollouts_table.c.id == rollout_id)
        ).scalar_one()
        return session, made | {"team": group}

    session, made = store.write(work)
    call = add_call(session, 0)
    prompt = store.read(
        lambda conn: conn.execute(
            select(calls_table.c.prompt_segment).where(calls_table.c.id == call)
        ).scalar_one()
    )
    said = Segment(new_id(), session, "completion", prompt, (5, 6, 7), (-0.1, -0.2, -0.3))
    store.write(lambda conn: calls.finish(conn, CallOutcome(call, said, (), "a", "stop", None, "e", {}, {})))
    return made | {"turn": call, "token": f"{call}:2"}


def test_every_unit_takes_rewards_for_what_is_there(give, stored, targets):
    for number, (unit, target) in enumerate(targets.items()):
        assert give(unit, target, float(number), detail=f"why {unit}")
    assert [(row.unit, row.target, row.value, row.detail) for row in stored()] == [
        (unit, target, float(number), f"why {unit}") for number, (unit, target) in enumerate(targets.items())
    ]
    assert set(targets) == {"token", "turn", "message", "tool_call", "agent", "rollout", "team"}


def test_what_is_not_there_takes_none(give, stored, targets):
    call = targets["turn"]
    wrong = [(unit, "nothing") for unit in targets]
    wrong += [
        ("token", f"{call}:3"),
        ("token", f"{call}:-1"),
        ("token", f"{call}:02"),
        ("token", call),
        ("token", f"{call}:"),
    ]
    wrong += [
        ("message", targets["tool_call"]),
        ("tool_call", targets["message"]),
        ("rollout", targets["team"]),
    ]
    for unit, target in wrong:
        with pytest.raises(StoreError, match=f"has no such {unit}"):
            give(unit, target)
    assert stored() == []


def test_units_of_another_rollout_take_none(give, store, targets):
    def another(conn):
        (row,) = conn.execute(select(rollouts_table)).mappings().all()
        values = {**row, "id": new_id(), "slot": 1}
        conn.execute(rollouts_table.insert().values(values))
        return values["id"]

    other = store.write(another)
    for unit in ("token", "turn", "message", "tool_call", "agent", "rollout"):
        with pytest.raises(StoreError, match=f"has no such {unit}"):
            store.write(
                lambda conn, unit=unit: rewards.add(
                    conn, RewardRow(other, unit, targets[unit], "task", 1.0, "t")
                )
            )
    with pytest.raises(StoreError, match="no such rollout"):
        store.write(
            lambda conn: rewards.add(conn, RewardRow("nobody", "rollout", "nobody", "task", 1.0, "t"))
        )


def test_a_reward_is_written_once(give, stored, rollout_id):
    assert give("rollout", rollout_id, 0.1 + 0.2, source="first")
    assert not give("rollout", rollout_id, 0.1 + 0.2, source="second")
    with pytest.raises(
        StoreError, match=r"is 0\.30000000000000004 \(from first\) and cannot become 0\.3 \(from third\)"
    ):
        give("rollout", rollout_id, 0.3, source="third")
    assert give("rollout", rollout_id, 0.3, channel="process.neat")
    assert [(row.channel, row.source) for row in stored()] == [("task", "first"), ("process.neat", "test")]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_only_finite_numbers_are_rewards(rollout_id, value):
    with pytest.raises(StoreError, match="finite"):
        RewardRow(rollout_id, "rollout", rollout_id, "task", value, "t")


def test_names_of_units_and_channels_are_checked(rollout_id):
    with pytest.raises(StoreError, match="no unit 'step'"):
        RewardRow(rollout_id, "step", rollout_id, "task", 1.0, "t")
    with pytest.raises(StoreError, match="name of a channel"):
        RewardRow(rollout_id, "rollout", rollout_id, "", 1.0, "t")


def test_a_failed_rollout_has_no_reward_but_costs(give, stored, store, rollout_id):
    outcome = RolloutOutcome(rollout_id, StopReason.ENGINE_ERROR, "infrastructure_error")
    store.write(lambda conn: rollouts.fail(conn, outcome, max_attempts=1))
    with pytest.raises(StoreError, match=r"the rollout failed \(engine_error\)"):
        give("rollout", rollout_id, 0.0)
    assert give("rollout", rollout_id, 12.5, channel="cost.wall_s")
    assert [row.channel for row in stored()] == ["cost.wall_s"]


def test_finishing_writes_the_graders_rewards_and_the_scores(store, rollout_id, stored):
    scores = (RewardRow(rollout_id, "rollout", rollout_id, "cost.calls", 3.0, "costs"),)
    outcome = RolloutOutcome(rollout_id, StopReason.FINISHED, "valid", {"reward": 0.5}, scores=scores)
    assert store.write(lambda conn: rollouts.finish(conn, outcome))
    assert [(row.channel, row.value, row.source) for row in stored()] == [
        ("reward", 0.5, "grader"),
        ("cost.calls", 3.0, "costs"),
    ]


def test_a_score_that_contradicts_the_grader_takes_the_whole_outcome_back(store, rollout_id, stored):
    scores = (RewardRow(rollout_id, "rollout", rollout_id, "reward", 0.0, "judge"),)
    outcome = RolloutOutcome(rollout_id, StopReason.FINISHED, "valid", {"reward": 0.5}, scores=scores)
    with pytest.raises(StoreError, match="written once"):
        store.write(lambda conn: rollouts.finish(conn, outcome))
    assert stored() == []
    status = store.read(lambda conn: conn.execute(select(rollouts_table.c.status)).scalar_one())
    assert status == "running"


def test_the_reward_of_an_agent_is_not_that_of_its_rollout(store, give, targets, rollout_id):
    give("agent", targets["agent"], -5.0, channel="reward")
    store.write(
        lambda conn: rollouts.finish(
            conn, RolloutOutcome(rollout_id, StopReason.FINISHED, "valid", {"reward": 1.0})
        )
    )
    run_id = store.read(lambda conn: conn.execute(select(rollouts_table.c.run_id)).scalar_one())
    assert store.read(lambda conn: rollouts.rewards_of(conn, run_id, "train")) == [1.0]
    assert store.read(lambda conn: rollouts.best(conn, run_id, 9)) == [rollout_id]
    (group,) = store.read(lambda conn: rollouts.complete_groups(conn, run_id, "train", 9))
    assert [member.reward for member in group.members] == [1.0]
