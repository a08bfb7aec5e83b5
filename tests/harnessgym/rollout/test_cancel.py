import time

import pytest
from sqlalchemy import select

from harnessgym.outcome.failure import Cause, StopReason
from harnessgym.process import identify
from harnessgym.store import rollout_states, rollouts
from harnessgym.store.rollouts import RolloutOutcome
from harnessgym.store.tables import calls, exclusions, sessions
from harnessgym.store.tables import rollouts as rollout_table

pytestmark = pytest.mark.anyio


def all_rows(line):
    query = select(rollout_table).order_by(rollout_table.c.slot, rollout_table.c.attempt)
    return line.store.read(lambda conn: list(conn.execute(query).mappings()))


def cancel(line, *ids):
    return line.store.write(lambda conn: rollouts.cancel(conn, ids))


def living(pids):
    return [pid for pid in pids if (found := identify(pid)) is not None and found.alive()]


def submit(line):
    line.store.write(lambda conn: line.node.plan.submit(conn, "training"))
    return [row["id"] for row in all_rows(line)]


async def test_a_pending_rollout_ends_at_once_and_is_never_claimed(make_line):
    async with make_line("good", group_size=3) as line:
        first, *rest = submit(line)
        assert cancel(line, first) == [first]
        assert cancel(line, first, "no such rollout") == []
        (row, *_) = all_rows(line)
        assert (row["status"], row["stop_reason"], row["cause"], row["verdict"]) == ("cancelled",) * 3 + (
            None,
        )
        claimed = line.store.write(lambda conn: rollouts.claim(conn, line.node.plan.run_id, "n", 9.0, 9))
        assert [one.id for one in claimed] == rest


async def test_a_group_closes_without_its_cancelled_slots(make_line):
    async with make_line("good", group_size=3) as line:
        (cancelled, *_) = submit(line)
        cancel(line, cancelled)
        await line.run(lambda line: line.groups().get("complete", 0) == 1)
        (group,) = line.complete()
        assert [(member.slot, member.reward) for member in group.members] == [(1, 1.0), (2, 1.0)]


async def test_a_group_of_which_too_little_is_left_is_dropped(make_line):
    async with make_line("good", group_size=3) as line:
        cancel(line, *submit(line))
        assert line.groups() == {"dropped": 1}


async def test_a_running_one_is_killed_within_a_second_with_all_it_started(make_line, tmp_path):
    async with make_line("hangs") as line:
        at, ids = [], []

        def cancelled_and_gone(line):
            mark = tmp_path / "mark"
            if not at and mark.exists() and len(mark.read_text().split()) == 4:
                ids.extend(row["id"] for row in all_rows(line))
                assert sorted(cancel(line, *ids)) == sorted(ids)
                at.append(time.monotonic())
            pids = [int(pid) for pid in mark.read_text().split()[:4]] if at else []
            return (
                bool(at) and not living(pids) and not any(row.id in ids for row in line.node.running.values())
            )

        await line.run(cancelled_and_gone)
        assert time.monotonic() - at[0] < 1.5
        assert set(line.groups()) - {"open"} == {"dropped"}
        for row in all_rows(line):
            if row["id"] in ids:
                assert (row["status"], row["cause"], row["attempt"]) == ("cancelled", "cancelled", 0)
                assert row["latencies"]["run"] > 0
                sealed = select(sessions.c.sealed).where(sessions.c.rollout_id == row["id"])
                assert line.store.read(lambda conn, query=sealed: conn.execute(query).scalars().all()) == [
                    True
                ]
                sampled = select(calls.c.completion_len).where(calls.c.rollout_id == row["id"])
                given_up = select(exclusions.c.reason).where(exclusions.c.rollout_id == row["id"])
                assert line.store.read(lambda conn, query=sampled: conn.execute(query).scalars().all()) != []
                assert line.store.read(lambda conn, query=given_up: conn.execute(query).scalars().all()) == [
                    "cancelled"
                ]
        assert list(line.node.pipeline.backend.root.glob("*/workspace/*")) == []


async def test_what_its_node_says_afterwards_changes_nothing(make_line):
    async with make_line("good") as line:
        (one, _) = submit(line)
        line.store.write(lambda conn: rollouts.claim(conn, line.node.plan.run_id, "n", 9.0, 9))
        cancel(line, one)
        well = RolloutOutcome(one, StopReason.FINISHED, "valid", {"reward": 1.0})
        assert not line.store.write(lambda conn: rollouts.finish(conn, well))
        badly = RolloutOutcome(
            one, StopReason.SANDBOX_ERROR, "infrastructure_error", cause=Cause.SANDBOX_DIED
        )
        assert not line.store.write(lambda conn: rollouts.fail(conn, badly, 9))
        (state,) = line.store.read(lambda conn: rollout_states.get(conn, [one]))
        assert (state.status, state.rewards, state.continued_by, state.final) == ("cancelled", {}, None, True)


async def test_one_that_has_ended_stays_as_it_is(make_line):
    async with make_line("good") as line:
        await line.run(lambda line: line.groups().get("complete", 0) == 1)
        ids = [row["id"] for row in all_rows(line) if row["status"] == "finished"]
        assert cancel(line, *ids) == []
        assert {row["verdict"] for row in line.rollouts()} == {"valid"}


async def test_a_rollout_that_another_node_took_over_is_stopped_here(make_line):
    async with make_line("sleeps") as line:
        taken = []

        def given_away(line):
            if not taken and line.node.stages.run.running == 2:
                taken.extend(row["id"] for row in all_rows(line))
                values = {"holder": "another"}
                stolen = rollout_table.update().where(rollout_table.c.id.in_(taken)).values(values)
                line.store.write(lambda conn: conn.execute(stolen))
            return bool(taken) and not any(row.id in taken for row in line.node.running.values())

        await line.run(given_away, timeout_s=30.0)
        assert {row["status"] for row in all_rows(line) if row["id"] in taken} == {"running"}
