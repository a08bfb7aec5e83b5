"""Tasks of several steps: one sandbox and one session, a launch and a grade for each, and how they make
one reward.
"""

from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import func, select

from harnessgym.grading.cheats.cheat import Cheat, program
from harnessgym.grading.cheats.scripted_agent import ScriptedAgent
from harnessgym.grading.cheats.suite import suite
from harnessgym.sandbox import Capability, needs
from harnessgym.sandboxes.bubblewrap import Bubblewrap, BubblewrapSettings
from harnessgym.store.tables import calls, sessions
from harnessgym.task import Grade, Hook, Setup, Solution, Task, TaskStep
from harnessgym.task_setup.steps import StepResult, all_solutions, joined, step_task
from tests.harnessgym.rollout.stepped import (
    HERE,
    Blocked,
    Enough,
    FinalTooLittle,
    LastCounts,
    LinkedAway,
    NoSuchChannel,
    TakenAway,
    TooLittle,
    Two,
    rewarded,
    step,
)

pytestmark = pytest.mark.anyio
WALLS = [pytest.param(False, id="process"), pytest.param(True, id="bubblewrap", marks=pytest.mark.bubblewrap)]


def ended(line):
    return len(line.rollouts()) == 2 and line.groups().get("open", 0) == 0


async def rollout(make_line, tasks, **options):
    """The first of a group's two rollouts of such a task, with its reward, and how many sessions and calls
    they had.
    """
    async with make_line("obeys", tasks=f"{HERE}:{tasks}", **options) as line:
        await line.run(ended, timeout_s=240.0)
        row, other = line.rollouts()
        assert names(row) == names(other)
        counts = {table: line.store.read(lambda conn, at=table: conn.execute(select(func.count()).select_from(at)).scalar_one())
                  for table in (sessions, calls)}  # fmt: skip
        (group,) = line.complete() or [None]
        return row, group.members[0].reward if group else None, counts


def names(row):
    return [(each["name"], each["rewards"]) for each in row["grading"]["steps"]]


@pytest.mark.parametrize("walls", WALLS)
async def test_steps_share_sandbox_and_session_and_each_is_graded(make_line, walls):
    row, reward, counts = await rollout(make_line, "Two", walls=walls)
    assert (row["stop_reason"], row["verdict"]) == ("finished", "valid"), row
    assert reward == 0.75
    assert names(row) == [("first", {"reward": 0.5, "style": 1.0}), ("second", {"reward": 1.0})]
    assert counts == {sessions: 2, calls: 4}
    assert "stopped" not in row["grading"]
    evidence = [each["evidence"] for each in row["grading"]["steps"]]
    assert [each["asked"] for each in evidence] == ["All of it.\n\nDo first.", "All of it.\n\nDo second."]
    assert {each["common"] for each in evidence} == {"kept"}
    assert set(row["latencies"]) >= {"prepare", "run", "reconstruct", "evaluate"}


async def test_on_a_step_there_is_no_second_opinion(make_line):
    row, _, _ = await rollout(make_line, "Two", second_opinion=True)
    opinion = row["grading"]["steps"][1]["evidence"]["second_opinion"]
    assert opinion["agrees"] is None
    assert "several steps" in opinion["why"]


@pytest.mark.parametrize(
    ("tasks", "reward", "reached", "stopped"),
    [
        ("FinalTooLittle", 0.0, 1, "Step 'first' reached 0.5 of 'reward', which must be 0.6 at least."),
        (
            "Blocked",
            1 / 3,
            2,
            "Step 'second' could not be laid because of what was left: Cannot write 'second.txt'",
        ),
        ("InTheHarnessesWay", 0.5, 2, "Cannot write 'instruction.txt'"),
    ],
)
async def test_a_rollout_ends_with_a_step_that_is_not_enough_or_cannot_be_laid(
    make_line, tasks, reward, reached, stopped
):
    row, found, _ = await rollout(make_line, tasks)
    assert (row["stop_reason"], row["verdict"]) == ("finished", "valid"), row
    assert found == pytest.approx(reward)
    assert len(names(row)) == reached
    assert stopped in row["grading"]["stopped"]


async def obey(task, sandbox):
    """Does what the instruction says, as the harness would."""
    await sandbox.write("instruction.txt", task.instruction.encode())
    done = await sandbox.exec(["python3", "-c", task.instruction.rpartition("---")[2]])
    assert done.ok, done.stderr


@pytest.mark.bubblewrap
@pytest.mark.parametrize(
    ("tasks", "rewards", "reached", "stopped"),
    [
        (Two, {"reward": 0.75, "style": 0.5}, 2, None),
        (LastCounts, {"reward": 1.0, "style": 0.0}, 2, None),
        (TooLittle, {"reward": 0.25}, 1, "0.6 at least"),
        (FinalTooLittle, {"reward": 0.0}, 1, "0.6 at least"),
        (Enough, {"reward": 0.8}, 2, "Step 'second' has no 'style', which must be -5 at least."),
        (NoSuchChannel, {"reward": 0.5}, 1, "Step 'first' has no 'style'"),
        (LinkedAway, {"reward": 0.5}, 2, "Links are not followed"),
        (TakenAway, {"reward": 0.5}, 2, "step 'second' of task 'stepped/train/"),
    ],
)
async def test_what_steps_come_to_and_where_they_end(tmp_path, tasks, rewards, reached, stopped):
    task = tasks().task()
    async with Bubblewrap(BubblewrapSettings(workspace_root=tmp_path / "w")) as backend:
        stand_in = ScriptedAgent(backend)
        async with stand_in.furnished(task) as sandbox:
            grade = await stand_in.grade(task, sandbox, obey)
    assert grade.rewards == pytest.approx(rewards)
    assert len(grade.evidence["steps"]) == reached
    assert ("stopped" in grade.evidence) == (stopped is not None)
    assert stopped is None or stopped in grade.evidence["stopped"]


@pytest.mark.bubblewrap
async def test_hooks_of_a_step_are_run_in_that_step_alone_after_the_tasks(tmp_path):
    def hook(name):
        return Hook(("sh", "-c", f"echo {name} >> ran.txt"))

    steps = tuple(step(name, rewarded(name, reward=1.0), hooks=(hook(name),)) for name in ("first", "second"))
    task = replace(Two().task(), steps=steps, hooks=(hook("all"),))
    async with Bubblewrap(BubblewrapSettings(workspace_root=tmp_path / "w")) as backend:
        stand_in = ScriptedAgent(backend)
        async with stand_in.furnished(task) as sandbox:
            grade = await stand_in.grade(task, sandbox, obey)
            ran = await sandbox.exec(["cat", "ran.txt"])
    assert grade.rewards == {"reward": 1.0}
    assert ran.stdout.split() == [b"all", b"first", b"all", b"second"]


async def test_tampering_with_one_is_tampering_with_all(make_line):
    row, reward, _ = await rollout(make_line, "Tampered")
    assert (row["verdict"], row["detail"], reward) == ("tampered", "Step 'second': it was forged", 0.0)
    assert [name for name, _ in names(row)] == ["first", "second"]


async def test_the_setup_of_a_first_step_is_the_tasks_own_doing(make_line):
    async with make_line("obeys", tasks=f"{HERE}:BrokenFirst") as line:
        await line.run(lambda line: bool(line.rollouts()))
        row = line.rollouts()[0]
        assert (row["verdict"], row["cause"]) == ("infrastructure_error", "setup_failed")
        assert "of step 'first' of task" in row["detail"]


async def test_a_step_has_a_time_limit_of_its_own(make_line):
    row, reward, _ = await rollout(make_line, "OutOfTime")
    assert (row["stop_reason"], row["verdict"], reward) == ("finished", "valid", 1.0)
    assert names(row) == [("first", {"reward": 1.0}), ("second", {"reward": 1.0})]


@asynccontextmanager
async def open_suite(tmp_path):
    async with (
        Bubblewrap(BubblewrapSettings(workspace_root=tmp_path / "w")) as backend,
        suite(backend) as running,
    ):
        yield running


@pytest.mark.bubblewrap
async def test_solutions_of_steps_are_gold_and_nothing_is_nothing(tmp_path):
    task = Blocked().task()
    forge = Cheat(
        "forges",
        1,
        "writes the rewards",
        lambda target: program(target, 'put(HERE / "first.json", "{\\"reward\\": 1}")'),
    )
    async with open_suite(tmp_path) as running:
        found = {result.cheat: result async for result in running.run(task, [forge])}
        broken = replace(task, steps=(*task.steps[:2], replace(task.steps[2], solution=None)))
        missing = [result async for result in running.run(broken, [])]
    assert (found["(gold)"].reward, found["(nothing)"].reward) == (1.0, 0.0)
    assert found["forges"].reward == pytest.approx(1 / 3)
    assert [each["name"] for each in found["(gold)"].evidence["steps"]] == ["first", "second", "third"]
    assert missing[0].error is not None


@pytest.mark.bubblewrap
async def test_gold_of_a_step_whose_setup_fails_first_is_an_error(tmp_path):
    task = replace(Two().task(), steps=(step("first", setup=Setup((("false",),))),))
    async with open_suite(tmp_path) as running:
        (gold, _) = [result async for result in running.run(task, [])]
    assert gold.reward is None
    assert "`false` of step 'first'" in gold.error


def test_a_step_as_a_task():
    task = Two().task()
    first, second = (step_task(task, each) for each in task.steps)
    assert first.instruction.startswith("All of it.\n\nDo first.")
    assert second.metadata == {"common": "kept", "name": "second"}
    assert (second.files, second.setup.run[0][0], second.steps, first.setup) == (
        {"later.txt": "later"},
        "sh",
        (),
        Setup(),
    )
    assert (first.limits, first.grader, first.id) == (task.limits, task.grader, task.id)
    assert (
        step_task(replace(task, instruction=""), TaskStep("a", "Only this.", wall_s=3.0)).instruction
        == "Only this."
    )
    assert step_task(task, TaskStep("a", "", wall_s=3.0)).limits == replace(task.limits, wall_s=3.0)
    assert step_task(task, TaskStep("a", "")).instruction == "All of it."


def test_a_task_needs_what_its_steps_need():
    task = Task(
        "t",
        "",
        steps=(TaskStep("a", ""), TaskStep("b", "", setup=Setup((("true",),), hosts=("example.com",)))),
    )
    assert needs(task) == {Capability.HOSTS}


def test_all_solutions_are_one():
    assert all_solutions(Task("t", "")) is None
    assert all_solutions(Task("t", "", solution=Solution({"a": "1"}))) == Solution({"a": "1"})
    steps = (
        TaskStep("a", "", solution=Solution({"a": "1"}, (("x",),))),
        TaskStep("b", "", solution=Solution({"b": "2"}, (("y",),))),
    )
    assert all_solutions(Task("t", "", steps=steps)) == Solution({"a": "1", "b": "2"}, (("x",), ("y",)))


channels = st.dictionaries(st.sampled_from(["reward", "style", "speed"]), st.floats(-10, 10), max_size=3)


@given(st.lists(channels, min_size=1, max_size=5), st.integers(0, 3), st.sampled_from(["mean", "final"]))
def test_joined_rewards_have_every_channel_and_stay_within_bounds(rewards, beyond, how):
    steps = tuple(TaskStep(str(number), "") for number in range(len(rewards) + beyond))
    reached = [StepResult(str(number), Grade(each)) for number, each in enumerate(rewards)]
    found = joined(Task("t", "", steps=steps, step_reward=how), reached).rewards
    assert set(found) == {channel for each in rewards for channel in each}
    for channel, value in found.items():
        had = [each.get(channel, 0.0) for each in rewards]
        if how == "final":
            assert value == (0.0 if beyond else had[-1])
        else:
            assert value == pytest.approx(sum(had) / len(steps))


@given(st.lists(channels, min_size=1, max_size=4), st.data())
def test_tampering_leaves_no_reward(rewards, data):
    guilty = data.draw(st.integers(0, len(rewards) - 1))
    reached = [
        StepResult(str(i), Grade(each, "forged" if i == guilty else None)) for i, each in enumerate(rewards)
    ]
    task = Task("t", "", steps=tuple(TaskStep(str(i), "") for i in range(len(rewards))))
    grade = joined(task, reached)
    assert grade.tampered == f"Step '{guilty}': forged"
    assert not any(grade.rewards.values())
