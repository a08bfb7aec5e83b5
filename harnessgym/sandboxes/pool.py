"""A warm pool: things that take long to make are made ahead of demand, parked, and handed out in the time it
takes to wake one.

What is pooled is grouped by a key; equal keys can stand for each other. How many are parked follows the
demand: what was claimed of a key lately, times how long making one takes, and one more. The whole pool is
bounded, by a number and by what the machine has room for; what nobody has claimed for a while is given up
again.
"""

import asyncio
import logging
import math
import os
import time
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from harnessgym.errors import HarnessGymError, SandboxError
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


_LOG = logging.getLogger("harnessgym.pool")
_MEMORY_S = 10.0
"""Time constant of the claim rate."""
_PAUSE_S = 1.0
"""After a failed refill of a key, before the next."""

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")
K_contra = TypeVar("K_contra", bound=Hashable, contravariant=True)


class Maker(Protocol[K_contra, T]):
    """What the pool does not know: how its things come into being, sleep, wake and end."""

    async def make(self, key: K_contra) -> T:
        """A new one, awake. Raises HarnessGymError if there can be none."""
        ...

    async def park(self, thing: T) -> None:
        """Puts it to sleep."""
        ...

    async def wake(self, thing: T) -> bool:
        """Wakes it and checks its health; False if it cannot be used. The pool discards it then, or when
        this raises.
        """
        ...

    async def discard(self, thing: T) -> None:
        """Ends it. Never raises."""
        ...

    def room(self) -> int:
        """How many more may be parked on this machine now."""
        ...


@dataclass(slots=True)
class Demand:
    """How often a key is claimed, and how long making one takes: both smoothed."""

    rate: float = 0.0
    """Claims per second."""
    make_s: float = 1.0
    at: float = field(default_factory=time.monotonic)

    def claimed(self, now: float) -> None:
        """Counts a claim."""
        self.rate = self.rate_at(now) + 1 / _MEMORY_S
        self.at = now

    def rate_at(self, now: float) -> float:
        """The rate, decayed to now."""
        return self.rate * math.exp(-(now - self.at) / _MEMORY_S)

    def wanted(self, now: float) -> int:
        """How many should be parked: what is claimed while two are made, and one more while anything is
        claimed at all.
        """
        rate = self.rate_at(now)
        return 0 if rate < 1e-3 else 1 + math.ceil(2 * rate * self.make_s)


@dataclass(frozen=True, slots=True)
class PoolCounts:
    """What a pool has done, for dashboards and tests."""

    parked: int
    warm: int
    """Claims served by a parked one."""
    cold: int
    """Claims that had to wait for one to be made."""
    sick: int
    """Parked ones that could not be used when they were wanted."""


class WarmPool(Generic[K, T]):
    """Hands out things of a kind by key. `most` bounds how many are parked in all; 0 makes every claim cold.

    ```python
    async with Pool(maker, most=8) as pool:
        thing = await pool.claim(key)
    ```
    """

    def __init__(self, maker: Maker[K, T], *, most: int, idle_s: float = 120.0, makers: int = 2) -> None:
        """`idle_s` is how long a key that nobody claims keeps its parked ones; `makers` how many are made
        ahead at a time.
        """
        self._maker = maker
        self._most = most
        self._idle_s = idle_s
        self._parked: dict[K, deque[T]] = {}
        self._demand: dict[K, Demand] = {}
        self._making: dict[K, int] = {}
        self._gate = asyncio.Semaphore(makers)
        self._tasks: set[asyncio.Task[None]] = set()
        self._ending: set[asyncio.Task[None]] = set()
        self._keeper: asyncio.Task[None] | None = None
        self._warm = self._cold = self._sick = 0

    @property
    def counts(self) -> PoolCounts:
        """What it has done so far."""
        return PoolCounts(self._parked_in_all(), self._warm, self._cold, self._sick)

    async def __aenter__(self) -> "WarmPool[K, T]":
        self._keeper = asyncio.create_task(self._keep())
        return self

    async def __aexit__(self, *exc: object) -> None:
        tasks = [*self._tasks, *([self._keeper] if self._keeper else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        parked = [thing for things in self._parked.values() for thing in things]
        self._parked.clear()
        await asyncio.gather(*self._ending, *(self._maker.discard(thing) for thing in parked))

    async def claim(self, key: K) -> T:
        """One for the caller, who ends it. Raises what making one raises."""
        demand = self._demand.setdefault(key, Demand())
        demand.claimed(time.monotonic())
        thing = await self._found(key)
        self._refill(key)
        return thing

    def warm_up(self, key: K, count: int) -> None:
        """Says that `count` will be claimed soon."""
        demand = self._demand.setdefault(key, Demand())
        demand.rate, demand.at = (
            max(demand.rate_at(time.monotonic()), count / (2 * demand.make_s)),
            time.monotonic(),
        )
        self._refill(key)

    async def _found(self, key: K) -> T:
        while parked := self._parked.get(key):
            thing = parked.popleft()
            if await self._woken(thing):
                self._warm += 1
                return thing
            self._sick += 1
        self._cold += 1
        return await self._made(key)

    async def _woken(self, thing: T) -> bool:
        """Wakes a parked one. One that cannot be used is ended, which the claim does not wait for."""
        try:
            if await self._maker.wake(thing):
                return True
        except asyncio.CancelledError:
            await asyncio.shield(self._end(thing))
            raise
        except BaseException:
            self._end(thing)
            raise
        self._end(thing)
        return False

    def _end(self, thing: T) -> asyncio.Task[None]:
        ending = asyncio.create_task(self._maker.discard(thing))
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)
        return ending

    async def _made(self, key: K) -> T:
        began = time.monotonic()
        thing = await self._maker.make(key)
        demand = self._demand.setdefault(key, Demand())
        demand.make_s = 0.7 * demand.make_s + 0.3 * (time.monotonic() - began)
        return thing

    def _parked_in_all(self) -> int:
        return sum(map(len, self._parked.values()))

    def _refill(self, key: K) -> None:
        """Starts as many makers as the key's demand and the bounds call for."""
        wanted = (
            self._demand.setdefault(key, Demand()).wanted(time.monotonic())
            - len(self._parked.get(key, ()))
            - self._making.get(key, 0)
        )
        free = min(self._most - self._parked_in_all() - sum(self._making.values()), self._maker.room())
        for _ in range(min(wanted, free)):
            self._making[key] = self._making.get(key, 0) + 1
            task = asyncio.create_task(self._add(key))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _add(self, key: K) -> None:
        try:
            async with self._gate:
                thing = await self._made(key)
                try:
                    await self._maker.park(thing)
                except BaseException:
                    await asyncio.shield(self._maker.discard(thing))
                    raise
                self._parked.setdefault(key, deque()).append(thing)
        except HarnessGymError as error:
            _LOG.warning("Nothing could be made ahead of demand: %s", error)
            await asyncio.sleep(_PAUSE_S)
        finally:
            self._making[key] -= 1

    async def _keep(self) -> None:
        """Gives up what nobody claims, and what the machine has no room for any more."""
        while True:
            await asyncio.sleep(min(1.0, self._idle_s / 4))
            now = time.monotonic()
            for key, parked in list(self._parked.items()):
                idle = now - self._demand.setdefault(key, Demand()).at > self._idle_s
                surplus = len(parked) if idle else max(0, -self._maker.room())
                while surplus > 0 and parked:  # others take some too
                    surplus -= 1
                    await self._maker.discard(parked.pop())
                if not parked and self._parked.get(key) is parked:
                    del self._parked[key]
                if idle and not self._making.get(key):
                    self._demand.pop(key, None)
