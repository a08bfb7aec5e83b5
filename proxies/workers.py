"""The proxy's table of engine workers: who may take a call, who is being drained, who does not answer.

Loaded from the store at start and changed through the control routes. A worker that was lost is suspect until it answers a
health check; calls wait while nobody can take them.
"""

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from harnessgym.errors import ConfigError, UpstreamLost
from harnessgym.registry import load
from harnessgym.routing import WorkerLoad, choose
from harnessgym.store.workers import WorkerRow, WorkerState
from proxies.upstream import Upstream

log = logging.getLogger(__name__)

_PROBE_S = 0.2
_PROBE_MAX_S = 2.0

Connect = Callable[[WorkerRow], Upstream]


@dataclass
class Worker:
    """One worker and what is in flight there."""

    row: WorkerRow
    upstream: Upstream
    load: int = 0
    suspect: bool = False

    def view(self) -> WorkerLoad:
        """What routing may know."""
        return WorkerLoad(self.row.id, self.row.version, self.row.state, self.load, self.suspect)


class NoWorker(UpstreamLost):
    """No worker could take a call in time."""


class WorkerTable:
    """Workers by id."""

    def __init__(self, connect: Connect | None = None, *, wait_s: float = 60.0, seed: int | None = None) -> None:
        self._connect = connect or connect_upstream
        self._wait_s = wait_s
        self._rng = random.Random(seed)
        self._workers: dict[str, Worker] = {}
        self._changed = asyncio.Condition()
        self._probes: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def taking(self, *, prefix_owner: str | None, pin: int | None, min_version: int | None) -> AsyncIterator[Worker]:
        """Send a call to a worker; waits while none can take it. Raises `NoWorker` after the set time.

        If the block raises `UpstreamLost` the worker becomes suspect.
        """
        worker = self._choose(prefix_owner, pin, min_version)
        if worker is None:
            worker = await self._await_choice(prefix_owner, pin, min_version)
        worker.load += 1
        try:
            yield worker
        except UpstreamLost:
            self._suspect(worker)
            raise
        finally:
            worker.load -= 1
            if worker.row.state != "ready":
                await self._notify()

    async def put(self, row: WorkerRow) -> None:
        """Add a worker, or change what is known of one."""
        known = self._workers.get(row.id)
        if known is None:
            known = self._workers[row.id] = Worker(row, self._connect(row))
        elif (known.row.address, known.row.kind) != (row.address, row.kind):
            known.upstream.close()
            known.upstream = self._connect(row)
        known.row, known.suspect, known.upstream.version = row, False, row.version
        await self._notify()

    async def set_state(self, worker_id: str, state: WorkerState, version: int | None = None) -> WorkerRow | None:
        """Change a worker's state, and its version if given; None if there is no such worker."""
        worker = self._workers.get(worker_id)
        if worker is None:
            return None
        await self.put(replace(worker.row, state=state, version=worker.row.version if version is None else version))
        return self._workers[worker_id].row

    async def idle(self, worker_id: str, timeout_s: float) -> int:
        """Wait until nothing is in flight at a worker. Returns what still is when the time is over."""
        worker = self._workers[worker_id]
        try:
            async with asyncio.timeout(timeout_s), self._changed:
                await self._changed.wait_for(lambda: worker.load == 0)
        except TimeoutError:
            pass
        return worker.load

    def all(self) -> list[Worker]:
        """All workers, by id."""
        return [self._workers[key] for key in sorted(self._workers)]

    def close(self) -> None:
        """Let go of connections."""
        for probe in self._probes:
            probe.cancel()
        for worker in self._workers.values():
            worker.upstream.close()

    def _choose(self, prefix_owner: str | None, pin: int | None, min_version: int | None) -> Worker | None:
        views = [worker.view() for worker in self._workers.values()]
        found = choose(views, prefix_owner=prefix_owner, pin=pin, min_version=min_version, rng=self._rng)
        return None if found is None else self._workers[found]

    async def _await_choice(self, prefix_owner: str | None, pin: int | None, min_version: int | None) -> Worker:
        try:
            async with asyncio.timeout(self._wait_s), self._changed:
                while (worker := self._choose(prefix_owner, pin, min_version)) is None:
                    await self._changed.wait()
                return worker
        except TimeoutError:
            states = ", ".join(f"{worker.row.id} v{worker.row.version} {worker.row.state}" for worker in self.all()) or "none"
            wanted = f" (version pinned: {pin}, at least: {min_version})"
            raise NoWorker(f"No engine worker{wanted} was ready within {self._wait_s:.0f} s (workers: {states}).") from None

    def _suspect(self, worker: Worker) -> None:
        if not worker.suspect:
            worker.suspect = True
            log.warning("Engine worker %s at %s was lost; probing it.", worker.row.id, worker.row.address)
            probe = asyncio.create_task(self._probe(worker))
            self._probes.add(probe)
            probe.add_done_callback(self._probes.discard)

    async def _probe(self, worker: Worker) -> None:
        pause = _PROBE_S
        while worker.suspect and not await worker.upstream.healthy():
            await asyncio.sleep(pause)
            pause = min(2 * pause, _PROBE_MAX_S)
        worker.suspect = False
        await self._notify()

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()


def connect_upstream(row: WorkerRow) -> Upstream:
    """The client for a worker's kind. Raises `ConfigError` for a kind nobody knows."""
    try:
        kind: Callable[..., Upstream] = load("upstream", row.kind)
    except ConfigError as error:
        raise ConfigError(f"Worker {row.id} at {row.address} cannot be used. {error}") from error
    return kind(row.address, version=row.version)
