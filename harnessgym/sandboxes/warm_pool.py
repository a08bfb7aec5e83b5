"""Spare containers: started ahead of demand, paused, handed out by `unpause`."""

import os

from harnessgym.errors import SandboxError
from harnessgym.sandboxes.containers import Container, ContainerPlan, Containers
from harnessgym.sandboxes.engine import EngineError

_SPARE_BYTES = 32 << 20
"""What a paused container takes of the machine: the agent, and the engine's shim beside it."""
_RESERVE = 0.15
"""Share of this machine's memory that is never taken for spares."""


class Spares:
    """How the pool (`harnessgym.sandboxes.pool`) makes, parks and wakes containers."""

    def __init__(self, containers: Containers) -> None:
        self._containers = containers

    async def make(self, key: ContainerPlan) -> Container:
        """A new container, awake. Raises SandboxError."""
        return await self._containers.start(key)

    async def park(self, thing: Container) -> None:
        """Pauses it. Raises SandboxError."""
        await self._containers.pause(thing)

    async def wake(self, thing: Container) -> bool:
        """Resumes it and asks its agent for the workspace: one that has died meanwhile does not answer.

        Raises EngineError when the engine is away: no other spare could be resumed either.
        """
        try:
            await self._containers.resume(thing)
            os.close(await thing.inside.root())
        except SandboxError as error:
            if isinstance(error, EngineError) and not error.status:
                raise
            return False
        return True

    async def discard(self, thing: Container) -> None:
        """Removes it."""
        await self._containers.remove(thing)

    def room(self) -> int:
        """How many more this machine has memory for; negative when there are too many."""
        import psutil

        memory = psutil.virtual_memory()
        return int((memory.available - _RESERVE * memory.total) // _SPARE_BYTES)
