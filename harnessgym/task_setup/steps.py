"""Runs tasks of several steps: one after another in one sandbox, each graded before the next is set up.

The caller decides what happens in a step: it launches a harness, applies a solution, or tries a cheat.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from harnessgym.disk import full_disk
from harnessgym.errors import SandboxError
from harnessgym.outcome.failure import Cause, RolloutFailed
from harnessgym.sandbox import Capability, Sandbox
from harnessgym.task import Grade, Solution, Task, TaskStep
from harnessgym.task_setup.workspace_setup import set_up

_ALIVE_S = 30.0


class StepObstructed(Exception):
    """What the agent left in earlier steps prevents the set-up of a step. Never leaves `through_steps`."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """The result of a step that was run or attempted."""

    name: str
    grade: Grade
    stopped: str = ""
    """Why no later step was run, if none was."""


async def through_steps(
    task: Task,
    sandbox: Sandbox,
    act: Callable[[Task], Awaitable[None]],
    grade: Callable[[Task], Awaitable[Grade]],
) -> Grade:
    """Sets up each step in a furnished sandbox, calls `act` and `grade`, and returns the grade of the task.

    Both callbacks get the step as a task of its own (`step_task`). Raises what they raise, SandboxError, and
    RolloutFailed for a setup that fails, unless the agent caused it.
    """
    reached: list[StepResult] = []
    for step in task.steps:
        asked = step_task(task, step)
        try:
            await _lay(asked, step, sandbox, first=not reached)
            await act(asked)
        except StepObstructed as error:
            stopped = f"Step {step.name!r} could not be laid because of what was left: {error}"
            reached.append(StepResult(step.name, Grade({"reward": 0.0}), stopped))
            break
        step_grade = await grade(asked)
        reached.append(StepResult(step.name, step_grade, _stopped(step, step_grade)))
        if reached[-1].stopped:
            break
    return joined(task, reached)


def step_task(task: Task, step: TaskStep) -> Task:
    """One step as a task of its own, with its instruction, files, setup and grading data.

    Files and setup are those of the step only. A hook that the step repeats runs once.
    """
    return replace(
        task,
        instruction="\n\n".join(filter(None, (task.instruction, step.instruction))),
        files=step.files,
        setup=step.setup,
        solution=step.solution,
        metadata={**task.metadata, **step.metadata},
        hooks=tuple(dict.fromkeys((*task.hooks, *step.hooks))),
        limits=task.limits if step.wall_s is None else replace(task.limits, wall_s=step.wall_s),
        steps=(),
    )


def all_solutions(task: Task) -> Solution | None:
    """The solutions of a task and its steps as one; None if there is none."""
    optional_solutions = (task.solution, *(step.solution for step in task.steps))
    solutions = [solution for solution in optional_solutions if solution is not None]
    if len(solutions) < 2:
        return solutions[0] if solutions else None
    files = {path: text for solution in solutions for path, text in solution.files.items()}
    return Solution(files, tuple(command for solution in solutions for command in solution.run))


def joined(task: Task, reached: Sequence[StepResult]) -> Grade:
    """Joins the grades of the steps that were reached, in order, into that of the task. Needs at least one.

    "mean": every channel's mean over all steps, with 0 for a step that was not reached or lacks the
    channel. "final": the last step's channels, or 0 for all if it was not reached. Tampering in one step is
    tampering in the task.
    """
    channels = sorted({channel for each in reached for channel in each.grade.rewards})
    if task.step_reward == "final":
        last: Mapping[str, float] = reached[-1].grade.rewards if len(reached) == len(task.steps) else {}
        rewards = {channel: last.get(channel, 0.0) for channel in channels}
    else:
        sums = {
            channel: sum(each.grade.rewards.get(channel, 0.0) for each in reached) for channel in channels
        }
        rewards = {channel: total / len(task.steps) for channel, total in sums.items()}
    tampered = next(
        (f"Step {each.name!r}: {each.grade.tampered}" for each in reached if each.grade.tampered), None
    )
    if tampered is not None:
        rewards = dict.fromkeys(rewards, 0.0)
    stopped = reached[-1].stopped
    evidence: dict[str, Any] = {"steps": [_step_dict(each) for each in reached], "of_steps": len(task.steps)}
    return Grade(rewards, tampered, evidence | ({"stopped": stopped} if stopped else {}))


@asynccontextmanager
async def laying(sandbox: Sandbox, *, first: bool) -> AsyncIterator[None]:
    """Turns a failure inside the block into `StepObstructed` if the agent can have caused it.

    That is so if this is not the first step and the sandbox itself still works.
    """
    try:
        yield
    except RolloutFailed as error:
        if first or error.cause is not Cause.SETUP_FAILED:
            raise
        raise StepObstructed(str(error)) from error
    except SandboxError as error:
        # A full disk is the agent's doing only in a sandbox with a disk of its own.
        of_machine = full_disk(error) is not None and Capability.DISK not in sandbox.capabilities
        if first or of_machine or not await _lives(sandbox):
            raise
        raise StepObstructed(str(error)) from error


async def _lay(asked: Task, step: TaskStep, sandbox: Sandbox, *, first: bool) -> None:
    async with laying(sandbox, first=first):
        for path, text in asked.files.items():
            await sandbox.write(path, text.encode())
    # A setup that uses the network can fail because a host is down, so the agent is not blamed for it.
    async with laying(sandbox, first=first or bool(asked.setup.hosts)):
        await set_up(asked.setup, sandbox, f"step {step.name!r} of task {asked.id!r}")


async def _lives(sandbox: Sandbox) -> bool:
    """Whether the sandbox can still run a command. It may lack `true`: any result will do."""
    try:
        await sandbox.exec(["true"], timeout_s=_ALIVE_S)
    except SandboxError:
        return False
    return True


def _stopped(step: TaskStep, grade: Grade) -> str:
    if grade.tampered is not None:
        return f"Step {step.name!r} was tampered with."
    for channel, least in step.min_reward.items():
        reward = grade.rewards.get(channel)
        if reward is None:
            return f"Step {step.name!r} has no {channel!r}, which must be {least:g} at least."
        if reward < least:
            return f"Step {step.name!r} reached {reward:g} of {channel!r}, which must be {least:g} at least."
    return ""


def _step_dict(each: StepResult) -> dict[str, Any]:
    entry = {"name": each.name, "rewards": dict(each.grade.rewards), "evidence": dict(each.grade.evidence)}
    return entry if each.grade.tampered is None else entry | {"tampered": each.grade.tampered}
