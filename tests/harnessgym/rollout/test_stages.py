import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harnessgym.rollout.stage import Stage, Stages
from harnessgym.run_config.run import NodeSection

pytestmark = pytest.mark.anyio


@given(limit=st.integers(1, 4), holds=st.lists(st.integers(0, 3), min_size=1, max_size=25))
def test_no_more_than_the_limit_are_in_and_the_rest_comes_in_order(limit, holds):
    async def run():
        stage, inside, entered = Stage("x", limit), 0, []

        async def one(number, steps):
            nonlocal inside
            async with stage.place():
                entered.append(number)
                inside += 1
                assert inside == stage.running <= limit
                for _ in range(steps):
                    await asyncio.sleep(0)
                inside -= 1

        await asyncio.gather(*(one(number, steps) for number, steps in enumerate(holds)))
        assert entered == sorted(entered)
        assert stage.counts() == type(stage.counts())("x", limit, 0, 0, len(holds), stage.counts().waited_s)

    asyncio.run(run())


async def test_time_in_the_queue_is_told_and_added_up():
    stage, waits = Stage("x", 1), []

    async def one():
        async with stage.place() as waited_s:
            waits.append(waited_s)
            await asyncio.sleep(0.05)

    await asyncio.gather(one(), one(), one())
    assert waits[0] < 0.04 < waits[1] < waits[2]
    assert stage.waited_s == pytest.approx(sum(waits))


async def test_one_that_is_cancelled_in_the_queue_or_inside_leaves_its_place():
    stage = Stage("x", 1)

    async def one(seconds):
        async with stage.place():
            await asyncio.sleep(seconds)

    inside, queued = asyncio.create_task(one(60)), asyncio.create_task(one(60))
    await asyncio.sleep(0.01)
    assert (stage.running, stage.waiting) == (1, 1)
    queued.cancel()
    inside.cancel()
    await asyncio.gather(inside, queued, return_exceptions=True)
    assert (stage.running, stage.waiting) == (0, 0)
    await asyncio.wait_for(one(0), 1.0)


async def test_room_is_for_the_run_places_and_a_few_prepared_ones_unless_grading_is_behind():
    stages = Stages(NodeSection(max_running=3, prepared_ahead=2, evaluate_at_once=1, evaluate_waiting=1))
    assert [stages.room(n) for n in (0, 4, 5, 9)] == [5, 1, 0, 0]
    release = asyncio.Event()

    async def graded():
        async with stages.evaluate.place():
            await release.wait()

    grading = [asyncio.create_task(graded())]
    await asyncio.sleep(0)
    assert stages.room(5) == 1, "one of the five is being graded: it takes no place of those that run"
    grading.append(asyncio.create_task(graded()))
    await asyncio.sleep(0)
    assert stages.room(2) == 0, "as many wait for a grader as may"
    release.set()
    await asyncio.gather(*grading)


def watched(line, enough):
    """`enough`, and what the stages and open sandboxes looked like at every look."""
    seen = []

    def look(line):
        counts = {stage.name: stage for stage in line.node.stages.counts()}
        seen.append((counts, line.node.pressure.opened))
        return enough(line)

    return look, seen


async def test_a_slow_grader_does_not_keep_harnesses_from_running(make_line):
    """Two run places, one grader of 0.4 s: eight rollouts have all run long before half of them are
    graded.
    """
    async with make_line("good", tasks="Slow", group_size=8, max_running=2, evaluate_at_once=1) as line:
        look, seen = watched(line, lambda line: line.groups().get("complete", 0) == 1)
        await line.run(look)
        assert all(counts["run"].running <= 2 and counts["evaluate"].running <= 1 for counts, _ in seen)
        assert any(counts["run"].running and counts["evaluate"].waiting >= 2 for counts, _ in seen)
        graded_when_all_had_run = min(
            counts["evaluate"].done for counts, _ in seen if counts["run"].done == 8
        )
        assert graded_when_all_had_run <= 5
        waits = sorted(row["latencies"]["wait.evaluate"] for row in line.rollouts())
        assert waits[0] < 0.3
        assert waits[-1] > 0.8


async def test_while_they_wait_for_a_grader_rollouts_keep_no_sandbox(make_line):
    async with make_line("good", tasks="Slow", group_size=6, max_running=6, evaluate_at_once=1) as line:
        look, seen = watched(line, lambda line: line.groups().get("complete", 0) == 1)
        await line.run(look)
        backlog = [
            opened for counts, opened in seen if counts["run"].done == 6 and counts["evaluate"].waiting >= 2
        ]
        assert backlog
        assert min(backlog) == 0
        assert {row["grading"]["mode"] for row in line.rollouts()} == {"separate"}
        assert "answer.txt" in line.rollouts()[0]["grading"]["made"]


async def test_sandboxes_are_prepared_ahead_of_a_free_place_and_no_more_than_that(make_line):
    async with make_line("waits", group_size=6, max_running=1, prepared_ahead=2) as line:
        look, seen = watched(line, lambda line: line.groups().get("complete", 0) == 1)
        await line.run(look)
        assert max(counts["run"].waiting for counts, _ in seen) == 2
        assert max(counts["run"].running for counts, _ in seen) == 1
        later = sorted((row["latencies"]["wait.run"] for row in line.rollouts()), reverse=True)
        assert later[0] > 0.5, "a prepared sandbox waits for the whole run of another"


async def test_grading_that_is_far_behind_stops_new_rollouts(make_line):
    options = {"max_running": 2, "prepared_ahead": 0, "evaluate_at_once": 1, "evaluate_waiting": 1}
    async with make_line("good", tasks="Slow", group_size=8, **options) as line:
        look, seen = watched(line, lambda line: line.groups().get("complete", 0) == 1)
        await line.run(look)
        assert max(counts["evaluate"].waiting for counts, _ in seen) <= 1 + 2
