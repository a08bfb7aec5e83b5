"""What a node does with each way in which an attempt fails."""

import contextlib

import psutil
import pytest
from sqlalchemy import func, select

from harnessgym.errors import SandboxError
from harnessgym.store import events
from harnessgym.store.tables import rewards


def one_group(line):
    return line.groups().get("open", 0) == 0 and sum(line.groups().values()) >= 1


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("harness", "cause"), [("eats", "memory_limit"), ("is_killed", "memory_limit"), ("fills", "disk_limit")]
)
async def test_an_agent_that_uses_up_its_sandbox_is_graded(make_line, harness, cause):
    async with make_line(harness) as line:
        await line.run(one_group)
        found = {
            (row["stop_reason"], row["cause"], row["verdict"], row["attempt"]) for row in line.rollouts()
        }
        assert found == {(cause, cause, "valid", 0)}
        assert [member.reward for member in line.complete()[0].members] == [0.0, 0.0]


@pytest.mark.anyio
async def test_a_sandbox_that_dies_is_no_reward_and_the_slot_is_tried_again(make_line):
    async with make_line("waits", max_attempts=2) as line:
        killed = []

        def kill_the_first(line):
            if not killed and len(line.upstream.asked) == 2:
                (server,) = line.node.pipeline.backend._servers.values()
                killed.extend(psutil.Process(server.pid).children())  # the inits of both rollouts
                for init in killed:
                    init.kill()
            return one_group(line)

        await line.run(kill_the_first)
        assert len(killed) == 2
        by_attempt = {
            (row["attempt"], row["status"], row["cause"], row["verdict"]) for row in line.rollouts()
        }
        died, well = (0, "failed", "sandbox_died", "infrastructure_error"), (1, "finished", None, "valid")
        assert by_attempt == {died, well}
        assert (
            line.store.read(lambda conn: conn.execute(select(func.count()).select_from(rewards)).scalar_one())
            == 2
        )


@pytest.mark.anyio
async def test_a_setup_command_that_fails_is_the_tasks_affair(make_line):
    async with make_line("good", tasks="BadlySetUp", max_attempts=1) as line:
        await line.run(lambda line: len(line.rollouts()) >= 2)
        for row in line.rollouts():
            assert (row["cause"], row["verdict"]) == ("setup_failed", "infrastructure_error")
            assert "no such package" in row["detail"]
            assert "status 3" in row["detail"]


@pytest.mark.anyio
async def test_setup_sees_the_tasks_files_and_its_work_is_there_for_the_harness(make_line):
    async with make_line("good", tasks="SetUp") as line:
        await line.run(one_group)
        assert {row["verdict"] for row in line.rollouts()} == {"valid"}
        assert all(row["latencies"]["prepare.setup"] > 0 for row in line.rollouts())


@pytest.mark.anyio
async def test_what_cannot_get_better_is_not_tried_again(make_line):
    async with make_line("good", tasks="Containers", max_attempts=3, abort_after_failures=99) as line:
        await line.run(lambda line: line.groups().get("dropped", 0) >= 1)
        assert {(row["cause"], row["attempt"]) for row in line.rollouts()} == {("capability_missing", 0)}


@pytest.mark.anyio
async def test_a_plugins_bug_is_written_down_and_ends_one_attempt_only(make_line):
    async with make_line("good", max_attempts=1) as line:

        class Broken:
            side_calls = ()
            image = ""

            def install(self):
                return ()

            def launch(self, task, endpoint):
                raise KeyError("argv")

        line.node.pipeline.harnesses["good"] = Broken()
        with contextlib.suppress(
            SandboxError
        ):  # a fast node has given up by then: all of its rollouts failed
            await line.run(lambda line: len(line.rollouts()) >= 2)
        assert {(row["cause"], row["verdict"]) for row in line.rollouts()} == {
            ("unknown", "infrastructure_error")
        }
        assert "KeyError: 'argv'" in line.rollouts()[0]["detail"]


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("tasks", "words"),
    [
        ("Barred", "What was graded could not be removed from "),
        ("BarredGrading", "A sandbox for grading could not be removed: "),
        ("BarredAgent", "Its sandbox could not be removed: "),
    ],
)
async def test_a_grade_outlives_a_clean_up_that_fails(make_line, tasks, words):
    async with make_line("good", tasks=f"tests.harnessgym.rollout.barring:{tasks}") as line:
        await line.run(one_group)
        rows = line.rollouts()
        assert [(row["attempt"], row["cause"], row["verdict"]) for row in rows] == [(0, None, "valid")] * 2
        assert [member.reward for member in line.complete()[0].members] == [1.0, 1.0]
        for row in rows:
            (event,) = line.store.read(
                lambda conn, row=row: events.of_rollout(conn, row["id"], "left_behind")
            )
            assert event.attributes["problem"].startswith(words)
            assert event.source == "node"


@pytest.mark.anyio
async def test_a_steps_grade_outlives_a_clean_up_that_fails(make_line):
    async with make_line("obeys", tasks="tests.harnessgym.rollout.barring:BarredSteps") as line:
        await line.run(one_group)
        rows = line.rollouts()
        assert [(row["attempt"], row["cause"], row["verdict"]) for row in rows] == [(0, None, "valid")] * 2
        assert [member.reward for member in line.complete()[0].members] == [1.0, 1.0]
        found = line.store.read(lambda conn: events.of_rollout(conn, rows[0]["id"], "left_behind"))
        assert len(found) == 2
