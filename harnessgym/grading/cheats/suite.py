"""Runs cheats in the agent's place and grades what they left like any other result.

A cheat has failed if its reward is 0 or its result counts as tampering, and it got no loot, left no process
running and sent no data out. If the cheat broke its sandbox, there is no verdict. That is not a reward
either, and the report shows it as no verdict.
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
"""Without these, cheats that kill and delete everything would do so on this machine."""
_BEAT_S = 0.15


class CheatSuite:
    """Cheats against the tasks of one open backend."""

    def __init__(self, backend: SandboxBackend, environment: CheatEnvironment) -> None:
        """Raises CapabilityError if the backend does not protect this machine from the cheats."""
        require(backend.capabilities, _WALLS)
        self._agent = ScriptedAgent(backend)
        self._environment = environment

    async def run(self, task: Task, cheats: Sequence[Cheat]) -> AsyncIterator[CheatResult]:
        """Runs gold and nothing first. If one of them is wrong, the task is broken and no cheat is tried."""
        controls = [await self._agent.gold(task), await self._agent.nothing(task)]
        for control in controls:
            yield control
        if not all(control.holds for control in controls):
            return
        for cheat in cheats:
            result = await self.cheat(task, cheat)
            if result is not None:
                yield result

    async def cheat(self, task: Task, cheat: Cheat) -> CheatResult | None:
        """Runs a cheat in the agent's place. Returns None if it does not apply to this task."""
        began, loot, ending = time.monotonic(), "", ""
        async with self._environment.listening() as listener:
            target = await asyncio.to_thread(
                self._environment.target, replace(task, solution=all_solutions(task)), listener
            )
            if not cheat.applies(target):
                return None
            try:
                async with self._agent.furnished(task) as sandbox:

                    async def attack(asked: Task, sandbox: Sandbox) -> None:
                        nonlocal loot, ending
                        ending = await _attack(sandbox, cheat.commands(target), asked)
                        loot = await _text(sandbox, LOOT)

                    result = judged(task, cheat.name, await self._agent.grade(task, sandbox, attack), began)
                    # After the grade: a process that is alive by now outlived the kill that precedes grading.
                    loot += await _alive(sandbox)
            except (HarnessGymError, OSError, MemoryError) as error:
                result = failed(task, cheat.name, error, began)
                # If the attack had run, the sandbox may be broken because of it: that is a result.
                result = replace(result, lost=result.lost and not ending)
        loot += "".join(f"{peer} got out\n" for peer in listener.heard)
        return replace(result, loot=loot, ending=ending)


@asynccontextmanager
async def suite(backend: SandboxBackend) -> AsyncIterator[CheatSuite]:
    """A suite over an open backend, with bait around it."""
    async with surroundings(backend) as environment:
        yield CheatSuite(backend, environment)


def missing(task: Task, backend: SandboxBackend) -> str:
    """What a task needs that the backend lacks; empty if nothing."""
    return ", ".join(sorted(needs(task) - backend.capabilities))


async def _attack(sandbox: Sandbox, attack: Attack, task: Task) -> str:
    """Runs the attack and returns how it ended. If it broke the sandbox, that is a result, not an error."""
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
    """A sentence if heartbeats continue after the verdict, else an empty string."""
    before = await _text(sandbox, HEARTBEAT)
    if not before:
        return ""
    await asyncio.sleep(_BEAT_S)
    return "it lives on after the end\n" if await _text(sandbox, HEARTBEAT) != before else ""
