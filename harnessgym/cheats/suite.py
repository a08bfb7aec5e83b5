"""Runs cheats in the agent's place and has what they left judged as any other result.

A cheat fails if its reward is 0 or it is called tampered with, if it got no loot, if nothing of it lives on, and if nothing it
sent arrived. A sandbox that it broke gives no verdict; that is no reward either, and is told apart.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from harnessgym.cheats.cheat import LOOT, Attack, Cheat
from harnessgym.cheats.daemons import HEARTBEAT
from harnessgym.cheats.surroundings import Surroundings, surroundings
from harnessgym.equipping import equipment_of
from harnessgym.errors import CapabilityError, HarnessGymError, ImageError, SandboxError, TaskError
from harnessgym.grading.judging import judge
from harnessgym.grading.verifier import Opener
from harnessgym.rollout.furnishing import furnish
from harnessgym.sandbox import Capability, Sandbox, SandboxBackend, needs, require
from harnessgym.task import Grade, Solution, Task

GOLD = "(gold)"
NOTHING = "(nothing)"
_WALLS = frozenset({Capability.NETWORK, Capability.FILES, Capability.PROCESSES})
"""Without these, cheats that kill and delete everything do so here."""
_BEAT_S = 0.15
_GOLD_S = 120.0


@dataclass(frozen=True, slots=True)
class Result:
    """What came of one cheat, of the gold solution, or of doing nothing, on one task."""

    task: str
    cheat: str
    reward: float | None
    """None: no verdict."""
    tampered: str | None = None
    error: str | None = None
    """Why there is no verdict."""
    lost: bool = False
    """Whether that is a sandbox's doing, before anything in it could have broken it. It says nothing about the task."""
    unusable: bool = False
    """Whether this backend cannot take the task: it lacks something, or the image cannot be built."""
    evidence: Mapping[str, Any] = field(default_factory=dict)
    """What the verdict rests on."""
    loot: str = ""
    """What it got, or how it lived on, or what it sent out; empty is as it should be."""
    ending: str = ""
    """How its own run ended, for those who write cheats."""
    seconds: float = 0.0

    @property
    def holds(self) -> bool:
        """Whether it is what it should be: 1 for gold, nothing for anything else."""
        if self.cheat == GOLD:
            return self.reward == 1.0 and self.tampered is None
        if self.cheat == NOTHING:
            return self.reward == 0.0
        return not self.loot and (self.reward is None or self.reward <= 0.0)


class Suite:
    """Cheats against the tasks of one open backend."""

    def __init__(self, backend: SandboxBackend, around: Surroundings) -> None:
        """Raises CapabilityError where cheats would do to this machine what they do to a sandbox."""
        require(backend.capabilities, _WALLS)
        self._backend = backend
        self._around = around

    async def run(self, task: Task, cheats: Sequence[Cheat]) -> AsyncIterator[Result]:
        """Gold and nothing first; a task that fails them is broken, and no cheat is tried."""
        controls = [await self.gold(task), await self.nothing(task)]
        for control in controls:
            yield control
        if not all(control.holds for control in controls):
            return
        for cheat in cheats:
            result = await self.cheat(task, cheat)
            if result is not None:
                yield result

    async def gold(self, task: Task) -> Result:
        """The solution in the agent's place."""
        if task.solution is None:
            return Result(task.id, GOLD, None, error="The task has no solution, so its zeros would mean nothing.")
        return await self._control(task, GOLD, partial(_solve, task, task.solution))

    async def nothing(self, task: Task) -> Result:
        """An agent that ends at once."""
        return await self._control(task, NOTHING, _rest)

    async def cheat(self, task: Task, cheat: Cheat) -> Result | None:
        """A cheat in the agent's place; None if it has nothing to try on this task."""
        began, loot, ending = time.monotonic(), "", ""
        async with self._around.listening() as ear:
            target = await asyncio.to_thread(self._around.target, task, ear)
            if not cheat.applies(target):
                return None
            try:
                async with self.furnished(task) as sandbox:
                    ending = await _attack(sandbox, cheat.commands(target), task)
                    loot = await _text(sandbox, LOOT)
                    result = _result(task, cheat.name, await judge(task, sandbox, self.fresh(task)), began)
                    loot += await _alive(sandbox)
            except (HarnessGymError, OSError, MemoryError) as error:
                result = _without(task, cheat.name, error, began)
                result = replace(result, lost=result.lost and not ending)
        loot += "".join(f"{peer} got out\n" for peer in ear.heard)
        return replace(result, loot=loot, ending=ending)

    async def _control(self, task: Task, name: str, act: Callable[[Sandbox], Awaitable[None]]) -> Result:
        began = time.monotonic()
        try:
            async with self.furnished(task) as sandbox:
                await act(sandbox)
                return _result(task, name, await judge(task, sandbox, self.fresh(task)), began)
        except (HarnessGymError, OSError, MemoryError) as error:
            return _without(task, name, error, began)

    @asynccontextmanager
    async def furnished(self, task: Task) -> AsyncIterator[Sandbox]:
        """As an agent finds it."""
        async with self._backend.open(task.limits, equipment_of(task)) as sandbox:
            await furnish(task, sandbox)
            yield sandbox

    def fresh(self, task: Task) -> Opener:
        """Opens what it is graded in."""
        return lambda: self._backend.open(task.limits, equipment_of(task, grades=True))


@asynccontextmanager
async def suite(backend: SandboxBackend) -> AsyncIterator[Suite]:
    """A suite over an open backend, with everything around it."""
    async with surroundings(backend) as around:
        yield Suite(backend, around)


def missing(task: Task, backend: SandboxBackend) -> str:
    """What a task needs that the backend lacks; empty if nothing."""
    return ", ".join(sorted(needs(task) - backend.capabilities))


async def _attack(sandbox: Sandbox, attack: Attack, task: Task) -> str:
    """Runs it; what it does to the sandbox may be an error, and is then said."""
    try:
        for path, text in attack.files.items():
            await sandbox.write(path, text.encode())
        done = await sandbox.exec(attack.argv, timeout_s=min(attack.timeout_s, task.limits.wall_s))
    except SandboxError as error:
        return f"the sandbox broke: {error}"
    how = "timeout" if done.timed_out else f"signal {done.signal}" if done.signal is not None else f"exit code {done.exit_code}"
    said = done.stderr[-300:].decode(errors="replace").strip()
    return f"{how}: {said}" if said else how


async def _text(sandbox: Sandbox, path: str) -> str:
    try:
        return (await sandbox.read(path)).decode(errors="replace")
    except (FileNotFoundError, SandboxError):
        return ""


async def _alive(sandbox: Sandbox) -> str:
    """Whether something still beats when the verdict is there."""
    before = await _text(sandbox, HEARTBEAT)
    if not before:
        return ""
    await asyncio.sleep(_BEAT_S)
    return "it lives on after the end\n" if await _text(sandbox, HEARTBEAT) != before else ""


async def _solve(task: Task, solution: Solution, sandbox: Sandbox) -> None:
    """Raises TaskError when a command of the solution fails."""
    for path, text in solution.files.items():
        await sandbox.write(path, text.encode())
    for command in solution.run:
        done = await sandbox.exec(command, timeout_s=max(_GOLD_S, task.limits.wall_s))
        if not done.ok:
            raise TaskError(f"The gold command {' '.join(command)[:200]!r} failed: {done.stderr[-500:]!r}")


async def _rest(sandbox: Sandbox) -> None:
    """Does nothing."""


def _result(task: Task, cheat: str, grade: Grade, began: float) -> Result:
    seconds = time.monotonic() - began
    return Result(task.id, cheat, grade.rewards["reward"], grade.tampered, evidence=grade.evidence, seconds=seconds)


def _without(task: Task, cheat: str, error: Exception, began: float) -> Result:
    unusable = isinstance(error, CapabilityError | ImageError)
    lost = not unusable and (isinstance(error, SandboxError) or not isinstance(error, HarnessGymError))
    seconds = time.monotonic() - began
    return Result(task.id, cheat, None, error=str(error), lost=lost, unusable=unusable, seconds=seconds)
