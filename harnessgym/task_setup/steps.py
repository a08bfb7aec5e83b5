"""Tasks of several steps: one after another in the same sandbox, each graded before the next one is laid.

What is done in a step is the caller's: a harness is launched, a solution applied, a cheat tried.
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
    """What the agent left in earlier steps keeps a further one from being laid. Never leaves
    `through_steps`.
    """


@dataclass(frozen=True, slots=True)
class StepResult:
    """A step that was run, or was to be run."""

    name: str
    grade: Grade
    stopped: str = ""
    """Why no later one was run, if that is so."""


async def through_steps(
    task: Task,
    sandbox: Sandbox,
    act: Callable[[Task], Awaitable[None]],
    grade: Callable[[Task], Awaitable[Grade]],
) -> Grade:
    """Lays each step into a furnished sandbox, has somebody act in it, and grades what is there; the grade of
    the whole.

    Both are given the step as a task of its own (`step_task`). Raises what they raise, SandboxError, and
    RolloutFailed for a setup that fails and not by the agent's doing.
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
        found = await grade(asked)
        reached.append(StepResult(step.name, found, _stopped(step, found)))
        if reached[-1].stopped:
            break
    return joined(task, reached)


def step_task(task: Task, step: TaskStep) -> Task:
    """One step as a task: what it is asked, what is laid, by what it is graded. Files and setup are the
    step's alone, and a hook that a step repeats is run once.
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
    """The solutions of a task and its steps as one; None if there is none at all."""
    found = (task.solution, *(step.solution for step in task.steps))
    solutions = [solution for solution in found if solution is not None]
    if len(solutions) < 2:
        return solutions[0] if solutions else None
    files = {path: text for solution in solutions for path, text in solution.files.items()}
    return Solution(files, tuple(command for solution in solutions for command in solution.run))


def joined(task: Task, reached: Sequence[StepResult]) -> Grade:
    """The grade of a task from those of its steps that were reached, in order, of which there is one at
    least.

    "mean": every channel's mean over all steps, 0 where a step was not reached or did not have it. "final":
    the last step's channels, and 0 for all if it was not reached. One that was tampered with makes all of it
    so.
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
    evidence: dict[str, Any] = {"steps": [_told(each) for each in reached], "of_steps": len(task.steps)}
    return Grade(rewards, tampered, evidence | ({"stopped": stopped} if stopped else {}))


@asynccontextmanager
async def laying(sandbox: Sandbox, *, first: bool) -> AsyncIterator[None]:
    """What fails meanwhile is the agent's doing (`StepObstructed`) if it was there before and the sandbox
    itself still works.
    """
    try:
        yield
    except RolloutFailed as error:
        if first or error.cause is not Cause.SETUP_FAILED:
            raise
        raise StepObstructed(str(error)) from error
    except SandboxError as error:
        of_machine = full_disk(error) is not None and Capability.DISK not in sandbox.capabilities
        if first or of_machine or not await _lives(sandbox):
            raise
        raise StepObstructed(str(error)) from error


async def _lay(asked: Task, step: TaskStep, sandbox: Sandbox, *, first: bool) -> None:
    async with laying(sandbox, first=first):
        for path, text in asked.files.items():
            await sandbox.write(path, text.encode())
    async with laying(
        sandbox, first=first or bool(asked.setup.hosts)
    ):  # a host that is away is not the agent's doing
        await set_up(asked.setup, sandbox, f"step {step.name!r} of task {asked.id!r}")


async def _lives(sandbox: Sandbox) -> bool:
    """Whether anything can be run, be it only the news that there is no such program."""
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


def _told(each: StepResult) -> dict[str, Any]:
    told = {"name": each.name, "rewards": dict(each.grade.rewards), "evidence": dict(each.grade.evidence)}
    return told if each.grade.tampered is None else told | {"tampered": each.grade.tampered}
