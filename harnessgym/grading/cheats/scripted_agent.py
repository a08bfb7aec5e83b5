"""A scripted agent: acts in place of an agent, and is graded like one.

It checks tasks without a model: the solution must get a reward, and doing nothing must not.
"""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from harnessgym.errors import CapabilityError, HarnessGymError, ImageError, SandboxError
from harnessgym.grading.artifacts import collected_artifacts
from harnessgym.grading.by_value.judge import ByValueJudge
from harnessgym.grading.grade import judge
from harnessgym.grading.upload import holding
from harnessgym.grading.verifier import Opener
from harnessgym.provisioning import equipment_of
from harnessgym.sandbox import Sandbox, SandboxBackend
from harnessgym.task import Grade, Task
from harnessgym.task_setup.steps import step_task, through_steps
from harnessgym.task_setup.workspace_setup import furnish, solve

GOLD = "(gold)"
NOTHING = "(nothing)"
BY_VALUE = "(nothing, by value)"


@dataclass(frozen=True, slots=True)
class CheatResult:
    """The result of one cheat, of the gold solution, or of doing nothing, on one task."""

    task: str
    cheat: str
    reward: float | None
    """None if there is no verdict."""
    tampered: str | None = None
    error: str | None = None
    """Why there is no verdict."""
    lost: bool = False
    """Whether the sandbox failed before the cheat could have broken it. That says nothing about the task."""
    unusable: bool = False
    """Whether this backend cannot run the task: it lacks a capability, or the image cannot be built."""
    evidence: Mapping[str, Any] = field(default_factory=dict)
    """The evidence of the grade."""
    loot: str = ""
    """What the cheat obtained, that it outlived its kill, or what it sent out. Must be empty."""
    ending: str = ""
    """How its own run ended, for authors of cheats."""
    seconds: float = 0.0

    @property
    def holds(self) -> bool:
        """Whether the result is right: reward 1 for gold, no reward for anything else."""
        # A cheat may have no verdict: it can break its sandbox. Doing nothing must have one, since without a
        # verdict the zeros of the cheats would say nothing.
        if self.cheat == GOLD:
            return self.reward == 1.0 and self.tampered is None
        if self.cheat in (NOTHING, BY_VALUE):
            return self.reward == 0.0
        return not self.loot and (self.reward is None or self.reward <= 0.0)


class ScriptedAgent:
    """A scripted agent in the sandboxes of one open backend."""

    def __init__(self, backend: SandboxBackend) -> None:
        self._backend = backend
        self._by_value = ByValueJudge()

    async def gold(self, task: Task, *, required: bool = False) -> CheatResult:
        """Runs the task's solution, or the solution of each step.

        With `required` it is judged as in a run with `second_opinion = "required"`.
        """
        for asked in (step_task(task, step) for step in task.steps) if task.steps else (task,):
            if asked.solution is None:
                return CheatResult(
                    task.id, GOLD, None, error="The task has no solution, so its zeros would mean nothing."
                )
        return await self._work(task, GOLD, solve, required=required)

    async def nothing(self, task: Task) -> CheatResult:
        """Does nothing."""
        return await self.act(task, NOTHING, _rest)

    async def nothing_by_value(self, task: Task, seed: int) -> CheatResult:
        """Does nothing, and is judged by value alone, with the inputs of a seed.

        There is no verdict, and the error says why, if the task cannot be judged by value.
        """
        began = time.monotonic()
        fresh = self.fresh(task)
        try:
            async with self.furnished(task) as sandbox, collected_artifacts(task, sandbox) as evidence:
                workspace = holding(evidence.folder, fresh, evidence.of_image)
                judgement = await self._by_value.judge(task, workspace, fresh, seed=seed)
            grade = judgement.applied(Grade({"reward": 1.0}, integrity="by_value"))
            return judged(task, BY_VALUE, grade, began)
        except (HarnessGymError, OSError, MemoryError) as error:
            return failed(task, BY_VALUE, error, began)

    async def act(self, task: Task, name: str, act: Callable[[Sandbox], Awaitable[None]]) -> CheatResult:
        """Runs `act` (in each step, if there are several) and returns the result under this name."""
        return await self._work(task, name, lambda _, sandbox: act(sandbox))

    async def grade(
        self,
        task: Task,
        sandbox: Sandbox,
        act: Callable[[Task, Sandbox], Awaitable[None]],
        *,
        required: bool = False,
    ) -> Grade:
        """Acts in a furnished sandbox, in each of the task's steps if it has any, and grades the result."""
        fresh = self.fresh(task)

        async def graded(asked: Task) -> Grade:
            return await judge(asked, sandbox, fresh, by_value=self._by_value, required=required)

        if not task.steps:
            await act(task, sandbox)
            return await graded(task)
        return await through_steps(task, sandbox, lambda asked: act(asked, sandbox), graded)

    async def _work(
        self,
        task: Task,
        name: str,
        act: Callable[[Task, Sandbox], Awaitable[None]],
        *,
        required: bool = False,
    ) -> CheatResult:
        began = time.monotonic()
        try:
            async with self.furnished(task) as sandbox:
                return judged(task, name, await self.grade(task, sandbox, act, required=required), began)
        except (HarnessGymError, OSError, MemoryError) as error:
            return failed(task, name, error, began)

    @asynccontextmanager
    async def furnished(self, task: Task) -> AsyncIterator[Sandbox]:
        """Opens a sandbox with the task set up, as an agent would start in it."""
        async with self._backend.open(task.limits, equipment_of(task)) as sandbox:
            await furnish(task, sandbox)
            yield sandbox

    def fresh(self, task: Task) -> Opener:
        """A factory of the sandboxes for grading."""
        return lambda: self._backend.open(task.limits, equipment_of(task, grades=True))


async def _rest(sandbox: Sandbox) -> None:
    """Does nothing."""


def judged(task: Task, cheat: str, grade: Grade, began: float) -> CheatResult:
    """A verdict as a result. `began` is by `time.monotonic`."""
    seconds = time.monotonic() - began
    return CheatResult(
        task.id, cheat, grade.rewards["reward"], grade.tampered, evidence=grade.evidence, seconds=seconds
    )


def failed(task: Task, cheat: str, error: Exception, began: float) -> CheatResult:
    """An error, as a result without a verdict."""
    # A task or grader that fails is the task's fault. Sandbox errors and errors of this machine are not.
    unusable = isinstance(error, CapabilityError | ImageError)
    lost = not unusable and (isinstance(error, SandboxError) or not isinstance(error, HarnessGymError))
    seconds = time.monotonic() - began
    return CheatResult(task.id, cheat, None, error=str(error), lost=lost, unusable=unusable, seconds=seconds)
