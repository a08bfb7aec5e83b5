"""The weight agent: keeps an engine worker on the newest committed version of its policy.

At most f workers of a policy update at a time (leases in the trace store). An update drains the worker at the
proxy, installs and checks the weights, and announces the worker with its new version. If a step fails, the
engine continues to serve its old version, and the agent tries again. Only a version that cannot be served
ends the agent: a worker that stays behind would hold up the whole run, which waits for its slowest worker.
"""

import asyncio
import contextlib
import logging
import math
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Protocol, TypeAlias, TypeVar

from sqlalchemy import Connection
from torch import Tensor

from harnessgym.errors import (
    HarnessGymError,
    PolicyError,
    ProxyError,
    StoreError,
    UpstreamError,
    UpstreamSilent,
)
from harnessgym.proxy_client import ControlClient
from harnessgym.scheduling.admission import SERVING
from harnessgym.store import TraceStore, leases, policies, workers
from harnessgym.store.backend import StoreWatch
from harnessgym.store.policies import PolicyVersion
from harnessgym.store.workers import WorkerRow, WorkerState
from trainers.weights.chain import read_from, read_version
from trainers.weights.manifest import Manifest
from trainers.weights.mirror import fetched, repaired
from trainers.weights.settings import AgentSettings, MirrorSettings

log = logging.getLogger(__name__)

T = TypeVar("T")
Held: TypeAlias = tuple[int, dict[str, Tensor]]
"""A version and its weights."""

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0
_CUTS, _CUT_S = 30, 1.0
"""How often remaining calls are ended, and the wait after each time."""
_LEAVE_S = 2.0
"""How long an agent tries to notify the proxy when it ends."""


class Installer(Protocol):
    """The agent's interface to an engine."""

    @property
    def kind(self) -> str:
        """The engine's kind in the workers table."""
        ...

    @property
    def carries_over(self) -> bool:
        """Whether calls in flight continue under the new weights, with each token labelled with its
        version.
        """
        ...

    @property
    def version(self) -> int | None:
        """The version that is served, as far as known; None if the weights are no version."""
        ...

    async def look(self) -> None:
        """Query which version is served. Raises `UpstreamLost` if the engine does not answer."""
        ...

    async def pause(self) -> None:
        """Abort the calls in flight, which return the tokens so far, and hold new ones. Does nothing if the
        engine `carries_over`.
        """
        ...

    async def install(self, weights: dict[str, Tensor], version: PolicyVersion) -> None:
        """Serve other weights, and check that they compute usable logits.

        Raises `PolicyError` if they cannot be served, `UpstreamError` if the engine failed, which says
        nothing about the weights. Afterwards the old weights are served, or `version` is None.
        """
        ...

    async def resume(self) -> None:
        """Accept calls again."""
        ...


def read_newest(
    store: TraceStore, policy_id: str, mirror: MirrorSettings | None = None
) -> tuple[PolicyVersion, dict[str, Tensor]] | None:
    """The newest committed version and its verified weights; None if there is none. See `read_verified`."""
    version = store.read(lambda conn: policies.latest(conn, policy_id))
    return None if version is None else read_verified(version, mirror=mirror)


def read_verified(
    version: PolicyVersion, held: Held | None = None, mirror: MirrorSettings | None = None
) -> tuple[PolicyVersion, dict[str, Tensor]]:
    """A version and its weights, from its own path or through a mirror. The result's path is the one that was
    read.

    With the weights `held` of an earlier version only the deltas since are read, if possible. A damaged
    version in a mirror is fetched again once. Raises `PolicyError` if the weights are not those that the
    store recorded, `TransferError` for a failure that may be temporary.
    """
    path = Path(version.path) if mirror is None else fetched(mirror, version.version, version.checksum)
    try:
        manifest, weights = _read(path, held)
    except PolicyError as error:
        if mirror is None:
            raise
        log.warning("The mirror's version %d is fetched again: %s", version.version, error)
        path = repaired(mirror, version.version)
        manifest, weights = _read(path, held)
    if (manifest.version, manifest.checksum) != (version.version, version.checksum):
        raise PolicyError(
            f"{path} has version {manifest.version} with checksum {manifest.checksum}; the store recorded "
            f"version {version.version} with {version.checksum}. Do not serve it; publish it again as a new "
            "version."
        )
    return replace(version, path=str(path)), weights


def _read(path: Path, held: Held | None) -> tuple[Manifest, dict[str, Tensor]]:
    return read_version(path) if held is None else read_from(*held, path)


class WeightAgent:
    """Follows a policy on behalf of one worker."""

    def __init__(self, settings: AgentSettings, worker_id: str, address: str, engine: Installer) -> None:
        self.settings = settings
        self.worker_id = worker_id
        self.engine = engine
        self._address = settings.address or address
        self._control = (
            ControlClient(settings.control_url, settings.control_key) if settings.control_url else None
        )
        self._reader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="weight-agent")
        self._store: TraceStore | None = None
        self._watch: StoreWatch | None = None
        self._announced: int | None = None
        self._state: WorkerState = "dead"  # as last reported
        self._showing: asyncio.Task[None] | None = None
        self._held: Held | None = None  # the base of the next delta
        self._looked_at = -math.inf

    async def run(self) -> None:
        """Register the worker, then install every version that becomes the newest, until cancelled.

        Raises `PolicyError` for a version that cannot be served; the engine then has its old weights, and the
        worker is marked as dead in the store. After a cancellation it is marked as ended.
        """
        pause = _FIRST_PAUSE_S
        last_error = ""
        end: WorkerState = "dead"
        try:
            while True:
                try:
                    await self._follow()
                    pause = _FIRST_PAUSE_S
                    last_error = ""
                    await self._changed()
                except PolicyError:
                    raise
                except Exception as error:  # the engine must keep serving, whatever happens to the agent
                    trace = None if isinstance(error, HarnessGymError) else error
                    level = logging.DEBUG if str(error) == last_error else logging.WARNING
                    log.log(
                        level,
                        "Weight agent of %s: %s Again in %.1f s.",
                        self.worker_id,
                        error,
                        pause,
                        exc_info=trace,
                    )
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, _LONGEST_PAUSE_S)
                    last_error = str(error)
        except asyncio.CancelledError:  # the caller ends the agent on purpose
            end = "ended"
            raise
        finally:
            await asyncio.shield(self._close(end))

    async def _follow(self) -> None:
        """Install the newest version if the worker serves another one; otherwise announce the worker."""
        if self._store is None:
            self._store = await self._off_loop(lambda: TraceStore.open(self.settings.store))
            self._watch = self._store.watch(self.settings.poll_s)
            await self._store.awrite(self._let_go)
            if self.engine.kind != workers.EMBEDDED:  # the supervisor watches an embedded engine's process
                self._showing = asyncio.create_task(self._show(self._store))
            await self._report(self._store, "starting")
        await self._look(self._store)
        if await self._wanted(self._store):
            async with self._lease(self._store) as lease:
                if version := await self._wanted(self._store):
                    await self._update(self._store, version, lease)
        elif self._announced != self._served:
            await self._announce(self._store)

    async def _wanted(self, store: TraceStore) -> PolicyVersion | None:
        """The newest version, unless the worker serves it."""
        latest = await self._off_loop(
            lambda: store.read(lambda conn: policies.latest(conn, self.settings.policy_id))
        )
        return None if latest is None or latest.version == self.engine.version else latest

    async def _update(self, store: TraceStore, version: PolicyVersion, lease: str) -> None:
        try:
            here, weights = await self._off_loop(
                lambda: read_verified(version, self._held, self.settings.mirror)
            )
        except PolicyError as error:
            if await self._wanted(store) != version:  # it was removed, because there is a newer one
                return
            raise self._refusal(version, error) from error
        before = self.engine.version
        serving = self._announced is not None
        self._announced = None
        await self._report(store, "draining" if serving else "starting")
        try:
            left = await self._control.drain(self.worker_id, self.settings.drain_s) if self._control else 0
            # Draining may take longer than the lease lives, e.g. if the store was away. Without this check
            # more than f workers could be out of service at once.
            if not await self._renewed(store, lease):
                raise StoreError(
                    f"Update lease {lease} was lost before version {version.version} was installed."
                )
            await self._cut_off()
            await self._report(store, "updating" if serving else "starting")
            await self.engine.install(weights, here)
            self._held = version.version, weights
        except PolicyError as error:
            if await self._wanted(store) == version:
                raise self._refusal(version, error) from error
            await self._put_back(store, before)  # its files may be gone, because there is a newer version
            return
        except Exception:  # the old weights are still served
            await self._put_back(store, before)
            raise
        log.info("%s serves version %d; %d calls were computed again.", self.worker_id, version.version, left)
        await self._announce(store)

    async def _look(self, store: TraceStore) -> None:
        """Query what the engine serves. If it is not what was announced, or the engine does not answer, the
        worker is withdrawn.
        """
        now = asyncio.get_running_loop().time()
        if now - self._looked_at < self.settings.look_s:
            return
        try:
            await self.engine.look()
        except Exception as error:
            state: WorkerState = "silent" if isinstance(error, UpstreamSilent) else "dead"
            new_silence = state != self._state and "silent" in (state, self._state)
            if self._announced is not None or self._state in SERVING or new_silence:
                await self._withdraw(store, state)
            raise
        self._looked_at = now
        if self._announced not in (None, self._served):
            await self._withdraw(store)

    async def _withdraw(self, store: TraceStore, state: WorkerState = "dead") -> None:
        """Stop calls to the worker until it is announced again."""
        await self._report(store, state)
        if self._control and self._announced is not None:
            await self._register(self._control, self._announced, state)
        self._announced = None

    async def _cut_off(self) -> None:
        """Abort the remaining calls, and wait until the proxy has received all their tokens."""
        if self.engine.carries_over:
            return
        # The proxy labels tokens with a version when they arrive, so none of the old weights' tokens may
        # arrive after the installation. Pausing is repeated because a call that was on its way during the
        # first pause would begin when the engine resumes.
        for _ in range(_CUTS):
            await self.engine.pause()
            left = await self._control.drain(self.worker_id, _CUT_S) if self._control else 0
            if not left:
                return
        raise UpstreamError(
            f"{self.worker_id} still has {left} calls in flight although its engine ended them."
        )

    async def _put_back(self, store: TraceStore, before: int | None) -> None:
        """After a failed update: announce the worker again if the engine still serves its old version. Until
        it confirms this the worker is marked as dead.
        """
        await self._report(store, "dead")
        await self.engine.look()
        if before is not None and self.engine.version == before:
            await self._announce(store)

    def _refusal(self, version: PolicyVersion, reason: HarnessGymError) -> PolicyError:
        return PolicyError(
            f"{self.worker_id} cannot serve policy version {version.version} at {version.path}: {reason} A "
            "restart does not help with a bad version: find out what wrote it, and publish again."
        )

    async def _announce(self, store: TraceStore) -> None:
        """Accept calls with the engine's version."""
        await self.engine.resume()
        await self._report(store, "ready")
        if self._control:
            await self._register(self._control, self._served, "ready")
        self._announced = self._served

    async def _register(self, control: ControlClient, version: int, state: WorkerState) -> None:
        kind = self.engine.kind
        policy_id = self.settings.policy_id
        await control.register(
            self.worker_id, self._address, version, state=state, kind=kind, policy_id=policy_id
        )

    @contextlib.asynccontextmanager
    async def _lease(self, store: TraceStore) -> AsyncIterator[str]:
        """Hold one of the policy's update leases; waits until one is free."""
        ttl = self.settings.lease_ttl_s

        def acquire(conn: Connection) -> str | None:
            return next(
                (name for name in self._leases if leases.acquire(conn, name, self.worker_id, ttl)), None
            )

        while (held := await store.awrite(acquire)) is None:
            await self._changed()
            await self._look(store)  # the engine may die during the wait, and nobody else would notice
        renewal = asyncio.create_task(self._renew(store, held))
        try:
            yield held
        finally:
            renewal.cancel()
            await store.awrite(lambda conn: leases.release(conn, held, self.worker_id))

    @property
    def _served(self) -> int:
        """The version that is served; starting weights count as version 0."""
        return self.engine.version or 0

    @property
    def _leases(self) -> list[str]:
        """The policy's update leases."""
        return [f"update:{self.settings.policy_id}:{number}" for number in range(self.settings.update_leases)]

    def _let_go(self, conn: Connection) -> None:
        """Release the leases that this worker held when it was killed."""
        # It starts with the newest weights, so it would not acquire them again, and other workers would have
        # to wait until they expire.
        for name in self._leases:
            leases.release(conn, name, self.worker_id)

    async def _renew(self, store: TraceStore, lease: str) -> None:
        """Renew a lease periodically. A loss is only logged here; an update checks again before it
        installs.
        """
        while True:
            await asyncio.sleep(self.settings.lease_ttl_s / 3)
            try:
                if not await self._renewed(store, lease):
                    log.warning(
                        "%s lost lease %s: more workers than intended may be updating.", self.worker_id, lease
                    )
            except StoreError as error:
                log.warning("%s could not renew lease %s: %s", self.worker_id, lease, error)

    async def _show(self, store: TraceStore) -> None:
        """Send heartbeats for the worker to the store. When they stop, the worker counts as dead."""
        ttl = self.settings.lease_ttl_s
        while True:
            try:
                await store.awrite(lambda conn: workers.show(conn, self.worker_id, ttl))
            except StoreError as error:
                log.warning("%s could not send its heartbeat: %s", self.worker_id, error)
            await asyncio.sleep(ttl / 3)

    async def _renewed(self, store: TraceStore, lease: str) -> bool:
        ttl = self.settings.lease_ttl_s
        return await store.awrite(lambda conn: leases.renew(conn, lease, self.worker_id, ttl))

    async def _report(self, store: TraceStore, state: WorkerState) -> None:
        own = self.settings
        row = WorkerRow(
            self.worker_id, own.run_id, self.engine.kind, self._address, self._served, state, own.policy_id
        )
        await store.awrite(lambda conn: workers.upsert(conn, row))
        self._state = state

    async def _changed(self) -> None:
        """Wait until the store may have changed."""
        assert self._watch is not None
        await self._watch.changed()

    async def _off_loop(self, work: Callable[[], T]) -> T:
        """Run blocking work on the agent's own thread, which has the store's read connection."""
        return await asyncio.get_running_loop().run_in_executor(self._reader, work)

    async def _leave(self, control: ControlClient) -> None:
        """Stop calls to the engine, which is no longer kept on the newest version."""
        try:
            async with asyncio.timeout(_LEAVE_S):
                await control.drain(self.worker_id, 0.0)
        except (TimeoutError, ProxyError) as error:
            log.warning("%s could not notify the proxy that it ends: %r", self.worker_id, error)

    async def _close(self, end: WorkerState) -> None:
        if self._control:
            if not self.engine.carries_over:
                await self._leave(self._control)
            await self._control.aclose()
        if self._showing is not None:
            self._showing.cancel()
            await asyncio.wait([self._showing])
        if self._store is not None:
            try:
                await self._report(self._store, end)
                await self._store.awrite(lambda conn: workers.leave(conn, self.worker_id))
            except StoreError as error:
                log.warning("%s could not report its end: %s", self.worker_id, error)
            if self._watch is not None:
                self._watch.close()
            await self._off_loop(self._store.close)
        self._reader.shutdown(wait=False)
