"""A warm pool: makes resources ahead of demand, parks them, and wakes one when it is claimed, which is quick.

Resources are grouped by a key; those of equal keys are interchangeable. The number of parked ones follows a
key's demand: its recent claim rate times the time to make two, plus one. The whole pool is limited by a
number and by the machine's memory. Resources that nobody claims for a while are discarded.
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
"""Memory of a paused container: the agent and the engine's shim."""
_RESERVE = 0.15
"""Share of this machine's memory that spares never use."""


class Spares:
    """The pool's `Maker` for containers: starts, pauses, resumes and removes them."""

    def __init__(self, containers: Containers) -> None:
        self._containers = containers

    async def make(self, key: ContainerPlan) -> Container:
        """Starts a container. Raises SandboxError."""
        return await self._containers.start(key)

    async def park(self, thing: Container) -> None:
        """Pauses a container. Raises SandboxError."""
        await self._containers.pause(thing)

    async def wake(self, thing: Container) -> bool:
        """Resumes a container. Returns False if it cannot be used.

        Raises EngineError if the engine does not answer, because no other spare could be resumed either.
        """
        try:
            await self._containers.resume(thing)
            # A health check: an agent that has died while it was paused does not answer.
            os.close(await thing.agent.root())
        except SandboxError as error:
            if isinstance(error, EngineError) and not error.status:
                raise
            return False
        return True

    async def discard(self, thing: Container) -> None:
        """Removes a container."""
        await self._containers.remove(thing)

    def room(self) -> int:
        """How many more containers this machine has memory for; negative if there are too many."""
        import psutil

        memory = psutil.virtual_memory()
        return int((memory.available - _RESERVE * memory.total) // _SPARE_BYTES)


_LOG = logging.getLogger("harnessgym.pool")
_MEMORY_S = 10.0
"""Time constant of the claim rate."""
_PAUSE_S = 1.0
"""Pause after a failed refill of a key."""

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")
K_contra = TypeVar("K_contra", bound=Hashable, contravariant=True)


class Maker(Protocol[K_contra, T]):
    """Makes, parks, wakes and discards the resources of a pool, such as containers."""

    async def make(self, key: K_contra) -> T:
        """Makes a thing, awake. Raises HarnessGymError if it cannot."""
        ...

    async def park(self, thing: T) -> None:
        """Puts a thing to sleep."""
        ...

    async def wake(self, thing: T) -> bool:
        """Wakes a thing and checks its health. Returns False if it cannot be used.

        The pool discards the thing if this returns False or raises.
        """
        ...

    async def discard(self, thing: T) -> None:
        """Ends a thing. Never raises."""
        ...

    def room(self) -> int:
        """How many more things may be parked on this machine now."""
        ...


@dataclass(slots=True)
class Demand:
    """How often a key is claimed and how long making one takes, both smoothed exponentially."""

    rate: float = 0.0
    """Claims per second."""
    make_s: float = 1.0
    at: float = field(default_factory=time.monotonic)

    def claimed(self, now: float) -> None:
        """Counts a claim."""
        self.rate = self.rate_at(now) + 1 / _MEMORY_S
        self.at = now

    def rate_at(self, now: float) -> float:
        """The claim rate, decayed to `now`."""
        return self.rate * math.exp(-(now - self.at) / _MEMORY_S)

    def wanted(self, now: float) -> int:
        """How many should be parked: the expected claims while two are made, plus one. 0 without demand."""
        rate = self.rate_at(now)
        return 0 if rate < 1e-3 else 1 + math.ceil(2 * rate * self.make_s)


@dataclass(frozen=True, slots=True)
class PoolCounts:
    """Counts of a pool, for dashboards and tests."""

    parked: int
    warm: int
    """Claims served by a parked thing."""
    cold: int
    """Claims that had to wait until a thing was made."""
    sick: int
    """Parked things that could not be used when they were claimed."""


class WarmPool(Generic[K, T]):
    """Hands out things by key. At most `most` are parked in all; 0 makes every claim cold.

    ```python
    async with WarmPool(maker, most=8) as pool:
        thing = await pool.claim(key)
    ```
    """

    def __init__(self, maker: Maker[K, T], *, most: int, idle_s: float = 120.0, makers: int = 2) -> None:
        """Keeps the parked things of a key for `idle_s` after its last claim.

        At most `makers` things are made ahead at a time.
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
        """The counts so far."""
        return PoolCounts(self._parked_in_all(), self._warm, self._cold, self._sick)

    async def __aenter__(self) -> "WarmPool[K, T]":
        self._keeper = asyncio.create_task(self._keep())
        return self

    async def __aexit__(self, *exc: object) -> None:
        # Tasks first: a maker that still runs could park another thing after the parked ones are discarded.
        tasks = [*self._tasks, *([self._keeper] if self._keeper else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        parked = [thing for things in self._parked.values() for thing in things]
        self._parked.clear()
        await asyncio.gather(*self._ending, *(self._maker.discard(thing) for thing in parked))

    async def claim(self, key: K) -> T:
        """Returns a thing, which the caller ends. Raises what `Maker.make` raises."""
        demand = self._demand.setdefault(key, Demand())
        demand.claimed(time.monotonic())
        thing = await self._take_parked(key)
        self._refill(key)
        return thing

    def warm_up(self, key: K, count: int) -> None:
        """Announces that `count` things will be claimed soon."""
        demand = self._demand.setdefault(key, Demand())
        demand.rate, demand.at = (
            max(demand.rate_at(time.monotonic()), count / (2 * demand.make_s)),
            time.monotonic(),
        )
        self._refill(key)

    async def _take_parked(self, key: K) -> T:
        while parked := self._parked.get(key):
            thing = parked.popleft()
            if await self._woken(thing):
                self._warm += 1
                return thing
            self._sick += 1
        self._cold += 1
        return await self._made(key)

    async def _woken(self, thing: T) -> bool:
        """Wakes a parked thing. Discards it in the background if it cannot be used."""
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
        """Starts as many makers as the key's demand needs and the limits allow."""
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
            _LOG.warning("The warm pool could not be refilled: %s", error)
            await asyncio.sleep(_PAUSE_S)
        finally:
            self._making[key] -= 1

    async def _keep(self) -> None:
        """Discards things that nobody claims or that the machine has no room for."""
        while True:
            await asyncio.sleep(min(1.0, self._idle_s / 4))
            now = time.monotonic()
            for key, parked in list(self._parked.items()):
                idle = now - self._demand.setdefault(key, Demand()).at > self._idle_s
                surplus = len(parked) if idle else max(0, -self._maker.room())
                # A claim may take some while this waits, so look again every time.
                while surplus > 0 and parked:
                    surplus -= 1
                    await self._maker.discard(parked.pop())
                if not parked and self._parked.get(key) is parked:
                    del self._parked[key]
                if idle and not self._making.get(key):
                    self._demand.pop(key, None)
