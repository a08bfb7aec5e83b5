"""Runs cheats in the agent's place and has what they left judged as any other result.

A cheat fails if its reward is 0 or it is called tampered with, if it got no loot, if nothing of it lives on,
and if nothing it sent arrived. A sandbox that it broke gives no verdict; that is no reward either, and is
told apart.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

from harnessgym.errors import HarnessGymError, SandboxError
from harnessgym.grading.cheats.cheat import LOOT, Attack, Cheat
from harnessgym.grading.cheats.daemons import HEARTBEAT
from harnessgym.grading.cheats.environment import CheatEnvironment, surroundings
from harnessgym.grading.cheats.scripted_agent import CheatResult, ScriptedAgent, failed, judged
from harnessgym.sandbox import Capability, Sandbox, SandboxBackend, needs, require
from harnessgym.task import Task
from harnessgym.task_setup.steps import all_solutions

_WALLS = frozenset({Capability.NETWORK, Capability.FILES, Capability.PROCESSES})
"""Without these, cheats that kill and delete everything do so here."""
_BEAT_S = 0.15


class CheatSuite:
    """Cheats against the tasks of one open backend."""

    def __init__(self, backend: SandboxBackend, around: CheatEnvironment) -> None:
        """Raises CapabilityError where cheats would do to this machine what they do to a sandbox."""
        require(backend.capabilities, _WALLS)
        self._stand_in = ScriptedAgent(backend)
        self._around = around

    async def run(self, task: Task, cheats: Sequence[Cheat]) -> AsyncIterator[CheatResult]:
        """Gold and nothing first; a task that fails them is broken, and no cheat is tried."""
        controls = [await self._stand_in.gold(task), await self._stand_in.nothing(task)]
        for control in controls:
            yield control
        if not all(control.holds for control in controls):
            return
        for cheat in cheats:
            result = await self.cheat(task, cheat)
            if result is not None:
                yield result

    async def cheat(self, task: Task, cheat: Cheat) -> CheatResult | None:
        """A cheat in the agent's place; None if it has nothing to try on this task."""
        began, loot, ending = time.monotonic(), "", ""
        async with self._around.listening() as ear:
            target = await asyncio.to_thread(
                self._around.target, replace(task, solution=all_solutions(task)), ear
            )
            if not cheat.applies(target):
                return None
            try:
                async with self._stand_in.furnished(task) as sandbox:

                    async def attack(asked: Task, sandbox: Sandbox) -> None:
                        nonlocal loot, ending
                        ending = await _attack(sandbox, cheat.commands(target), asked)
                        loot = await _text(sandbox, LOOT)

                    result = judged(
                        task, cheat.name, await self._stand_in.grade(task, sandbox, attack), began
                    )
                    loot += await _alive(sandbox)
            except (HarnessGymError, OSError, MemoryError) as error:
                result = failed(task, cheat.name, error, began)
                result = replace(result, lost=result.lost and not ending)
        loot += "".join(f"{peer} got out\n" for peer in ear.heard)
        return replace(result, loot=loot, ending=ending)


@asynccontextmanager
async def suite(backend: SandboxBackend) -> AsyncIterator[CheatSuite]:
    """A suite over an open backend, with everything around it."""
    async with surroundings(backend) as around:
        yield CheatSuite(backend, around)


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
    return done.describe(300)


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
