"""The weight agent: keeps an engine worker on the newest committed version of its policy.

At most f workers of a policy update at a time (leases in the trace store). An update drains the worker at the proxy, installs,
checks, and puts the worker back with its new version. Whatever fails on the way, the engine goes on serving what it has, and
the agent tries again. Only a version that cannot be served ends the agent: a worker that stayed behind for good would hold up
the whole run, which waits for its slowest worker.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol, TypeAlias, TypeVar

from sqlalchemy import Connection
from torch import Tensor

from harnessgym.errors import HarnessGymError, PolicyError, StoreError, UpstreamError
from harnessgym.rollout.control import ControlClient
from harnessgym.store import TraceStore, leases, policies, workers
from harnessgym.store.policies import PolicyVersion
from harnessgym.store.watch import Watch
from harnessgym.store.workers import WorkerRow, WorkerState
from trainers.weights.chain import read_from, read_version
from trainers.weights.mirror import fetched
from trainers.weights.settings import AgentSettings, MirrorSettings

log = logging.getLogger(__name__)

T = TypeVar("T")
Held: TypeAlias = tuple[int, dict[str, Tensor]]
"""A version and its weights."""

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0


class Installer(Protocol):
    """What the agent needs of an engine."""

    @property
    def version(self) -> int:
        """Version that is served."""
        ...

    async def snapshot(self) -> dict[str, Tensor]:
        """The weights that are served."""
        ...

    async def install(self, weights: dict[str, Tensor], version: int) -> None:
        """Serve other weights; raises and changes nothing if they do not fit."""
        ...

    async def check(self) -> None:
        """One forward pass; raises if it gives no usable logits."""
        ...


def read_newest(
    store: TraceStore, policy_id: str, mirror: MirrorSettings | None = None
) -> tuple[PolicyVersion, dict[str, Tensor]] | None:
    """The newest committed version and its verified weights; None if there is none. Raises as `read_verified` does."""
    found = store.read(lambda conn: policies.latest(conn, policy_id))
    return None if found is None else (found, read_verified(found, mirror=mirror))


def read_verified(version: PolicyVersion, held: Held | None = None, mirror: MirrorSettings | None = None) -> dict[str, Tensor]:
    """Weights of a version, from its own path or through a mirror.

    With the weights `held` of an earlier one only the deltas since are read, if they lead there. Raises `PolicyError` if the
    weights are not those that the store recorded, `TransferError` if they could not be fetched for now.
    """
    path = Path(version.path) if mirror is None else fetched(mirror, version.version)
    manifest, weights = read_version(path) if held is None else read_from(*held, path)
    if (manifest.version, manifest.checksum) != (version.version, version.checksum):
        raise PolicyError(
            f"{version.path} holds version {manifest.version} with checksum {manifest.checksum}, the store recorded version "
            f"{version.version} with {version.checksum}. Do not serve it; publish it again as a new version."
        )
    return weights


class WeightAgent:
    """Follows a policy on behalf of one worker."""

    def __init__(self, settings: AgentSettings, worker_id: str, address: str, engine: Installer) -> None:
        self.settings, self.worker_id, self.engine = settings, worker_id, engine
        self._address = settings.address or address
        self._control = ControlClient(settings.control_url, settings.control_key) if settings.control_url else None
        self._reader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="weight-agent")
        self._store: TraceStore | None = None
        self._watch: Watch | None = None
        self._announced = False
        self._held: Held | None = None  # what the next delta overwrites

    async def run(self) -> None:
        """Register the worker, then install every version that becomes the newest, until cancelled.

        Raises `PolicyError` for a version that cannot be served; the engine then has its old weights, and the store calls the
        worker dead.
        """
        pause = _FIRST_PAUSE_S
        try:
            while True:
                try:
                    await self._follow()
                    pause = _FIRST_PAUSE_S
                    await self._changed()
                except PolicyError:
                    raise
                except Exception as error:  # serving must outlive whatever happens to the agent
                    trace = None if isinstance(error, HarnessGymError) else error
                    log.warning("Weight agent of %s: %s Again in %.1f s.", self.worker_id, error, pause, exc_info=trace)
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, _LONGEST_PAUSE_S)
        finally:
            await asyncio.shield(self._close())

    async def _follow(self) -> None:
        """Install the newest version if it is another one than the worker serves; let calls come otherwise."""
        if self._store is None:
            self._store = await self._off_loop(lambda: TraceStore.open(self.settings.store))
            self._watch = self._store.watch(self.settings.poll_s)
            await self._store.awrite(self._let_go)
            await self._report(self._store, "starting")
        if await self._wanted(self._store):
            async with self._lease(self._store) as lease:
                if version := await self._wanted(self._store):
                    await self._update(self._store, version, lease)
        elif not self._announced:
            await self._announce(self._store)

    async def _wanted(self, store: TraceStore) -> PolicyVersion | None:
        """The newest version, unless the worker serves it."""
        found = await self._off_loop(lambda: store.read(lambda conn: policies.latest(conn, self.settings.policy_id)))
        return None if found is None or found.version == self.engine.version else found

    async def _update(self, store: TraceStore, version: PolicyVersion, lease: str) -> None:
        try:
            weights = await self._off_loop(lambda: read_verified(version, self._held, self.settings.mirror))
        except PolicyError as error:
            if await self._wanted(store) != version:  # removed because it was overtaken
                return
            raise self._refusal(version, error) from error
        self._announced = False
        await self._report(store, "draining")
        try:
            left = await self._control.drain(self.worker_id, self.settings.drain_s) if self._control else 0
            if not await self._renewed(store, lease):
                raise StoreError(f"Update lease {lease} was lost before version {version.version} was installed.")
            await self._report(store, "updating")
            await self._install(weights, version)
            self._held = version.version, weights
        except PolicyError:
            raise
        except Exception:  # the old weights serve on
            await self._announce(store)
            raise
        log.info("%s serves version %d; %d calls were computed again.", self.worker_id, version.version, left)
        await self._announce(store)

    async def _install(self, weights: dict[str, Tensor], version: PolicyVersion) -> None:
        """Install and check. Weights that do not fit or compute nothing usable raise `PolicyError`; the old ones come back."""
        before, previous = self.engine.version, await self.engine.snapshot()
        try:
            await self.engine.install(weights, version.version)
            await self.engine.check()
        except HarnessGymError as error:
            if self.engine.version != before:
                await self.engine.install(previous, before)
            elif isinstance(error, UpstreamError):  # the engine has stopped, which says nothing about the version
                raise
            raise self._refusal(version, error) from error

    def _refusal(self, version: PolicyVersion, reason: HarnessGymError) -> PolicyError:
        return PolicyError(
            f"{self.worker_id} cannot serve policy version {version.version} at {version.path}: {reason} A restart does not "
            "mend a bad version: find out what wrote it, and publish again."
        )

    async def _announce(self, store: TraceStore) -> None:
        """Let calls come, to the version the engine has."""
        await self._report(store, "ready")
        if self._control:
            await self._control.register(self.worker_id, self._address, self.engine.version)
        self._announced = True

    @contextlib.asynccontextmanager
    async def _lease(self, store: TraceStore) -> AsyncIterator[str]:
        """Hold one of the policy's update leases, waiting for it as long as others hold them all."""
        ttl = self.settings.lease_ttl_s

        def acquire(conn: Connection) -> str | None:
            return next((name for name in self._leases if leases.acquire(conn, name, self.worker_id, ttl)), None)

        while (held := await store.awrite(acquire)) is None:
            await self._changed()
        renewal = asyncio.create_task(self._renew(store, held))
        try:
            yield held
        finally:
            renewal.cancel()
            await store.awrite(lambda conn: leases.release(conn, held, self.worker_id))

    @property
    def _leases(self) -> list[str]:
        """The policy's update leases."""
        return [f"update:{self.settings.policy_id}:{number}" for number in range(self.settings.update_leases)]

    def _let_go(self, conn: Connection) -> None:
        """Give back what this worker held when it was killed: it starts with the newest weights and would never ask for it."""
        for name in self._leases:
            leases.release(conn, name, self.worker_id)

    async def _renew(self, store: TraceStore, lease: str) -> None:
        """Keep a lease. That it was lost is only logged here; an update asks again before it installs."""
        while True:
            await asyncio.sleep(self.settings.lease_ttl_s / 3)
            try:
                if not await self._renewed(store, lease):
                    log.warning("%s lost lease %s: more workers than intended may be updating.", self.worker_id, lease)
            except StoreError as error:
                log.warning("%s could not renew lease %s: %s", self.worker_id, lease, error)

    async def _renewed(self, store: TraceStore, lease: str) -> bool:
        ttl = self.settings.lease_ttl_s
        return await store.awrite(lambda conn: leases.renew(conn, lease, self.worker_id, ttl))

    async def _report(self, store: TraceStore, state: WorkerState) -> None:
        run, version = self.settings.run_id, self.engine.version
        row = WorkerRow(self.worker_id, run, "embedded", self._address, version, state)
        await store.awrite(lambda conn: workers.upsert(conn, row))

    async def _changed(self) -> None:
        """Wait until others may have written something."""
        assert self._watch is not None
        await self._watch.changed()

    async def _off_loop(self, work: Callable[[], T]) -> T:
        """Do blocking work on the agent's own thread (which has the store's read connection)."""
        return await asyncio.get_running_loop().run_in_executor(self._reader, work)

    async def _close(self) -> None:
        if self._control:
            await self._control.aclose()
        if self._store is not None:
            try:
                await self._report(self._store, "dead")
            except StoreError as error:
                log.warning("%s could not report its end: %s", self.worker_id, error)
            if self._watch is not None:
                self._watch.close()
            await self._off_loop(self._store.close)
        self._reader.shutdown(wait=False)
