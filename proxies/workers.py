"""The proxy's table of engine workers: which are ready, draining, or suspect.

It is loaded from the store at start and changed through the control routes. A worker that was lost is suspect
until it answers a health check. Calls wait while no worker can take them.

A process that is stopped, or whose machine is cut off, keeps its connections open and sends nothing. So the
health of a worker that has calls and gives no token for `probe_s` is checked. If the check fails the worker
becomes suspect. If the next one fails too, its calls are moved to other workers.
"""

import asyncio
import logging
import math
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import cast

from harnessgym.engine_timeouts import EngineTimeouts
from harnessgym.errors import ConfigError, UpstreamError, UpstreamLost, UpstreamSilent
from harnessgym.message import Sampling
from harnessgym.registry import load
from harnessgym.scheduling.routing import WorkerLoad, choose
from harnessgym.store.workers import WorkerRow, WorkerState
from proxies.language import PolicyLanguage
from proxies.upstream import HasTimeouts, SpeaksLanguage, TextUpstream, Upstream
from proxies.upstreams.parked import ParkedUpstream
from proxies.upstreams.replay import ReplayUpstream

log = logging.getLogger(__name__)

_PROBE_S = 0.2
_PROBE_MAX_S = 2.0
_PROBE_PROMPT = (0,)
"""Prompt of the one-token probe of a worker that was silent; every vocabulary has token 0."""

AnyUpstream = Upstream | TextUpstream
Connect = Callable[[WorkerRow], AnyUpstream]
PARKED = "parked"
"""Upstream of sessions whose calls are answered through the control routes."""
REPLAY = "replay"
"""Upstream of sessions whose calls are answered from a recording."""


@dataclass(frozen=True, slots=True)
class WorkerFilter:
    """Which workers may take a call."""

    upstream: str | None = None
    """A worker's id, or a kind of worker. None: any engine of the policy, never an outside model."""
    prefix_owner: str | None = None
    """The worker that has the prompt's prefix cached."""
    pin: int | None = None
    """The policy version that must answer."""
    min_version: int | None = None
    """The oldest policy version that may answer."""
    policy_id: str | None = None
    """The policy that must answer; None if there is only one."""

    def __str__(self) -> str:
        versions = f"version pinned: {self.pin}, at least: {self.min_version}"
        policy = f" of policy {self.policy_id}" if self.policy_id else ""
        return f"{self.upstream or 'engine'} worker{policy} ({versions})"


@dataclass
class Worker:
    """One worker and its calls in flight."""

    row: WorkerRow
    upstream: AnyUpstream
    load: int = 0
    suspect: bool = False
    checked_at: float = -math.inf
    """Loop time of its last health check for being quiet."""
    quiet_since: float | None = None
    """Loop time since when it has given no token although it has calls; None if no token is due."""
    calls: set[asyncio.Timeout] = field(default_factory=set)
    """The timeouts that end its calls in flight."""

    def heard(self) -> None:
        """Note that it has just given a token, or got its first call."""
        self.quiet_since = asyncio.get_running_loop().time()

    def quiet_s(self) -> float:
        """How long it has given no token that was due."""
        return 0.0 if self.quiet_since is None else asyncio.get_running_loop().time() - self.quiet_since

    def serves(self, wanted: WorkerFilter) -> bool:
        """Whether it matches a filter, whatever its state."""
        text = is_text(self.upstream)
        if not text and wanted.policy_id not in (None, self.row.policy_id):
            return False
        return not text if wanted.upstream is None else wanted.upstream in (self.row.id, self.row.kind)

    def view(self) -> WorkerLoad:
        """The worker as routing sees it."""
        return WorkerLoad(self.row.id, self.row.version, self.row.state, self.load, self.suspect)


_TEXT: dict[type, bool] = {}


def is_text(upstream: AnyUpstream) -> bool:
    """Whether an upstream is an outside model."""
    # Cached by type: it is checked several times per call, and `isinstance` of a protocol is slow.
    kind = type(upstream)
    if kind not in _TEXT:
        _TEXT[kind] = isinstance(upstream, TextUpstream)
    return _TEXT[kind]


class NoWorker(UpstreamLost):
    """No worker could take a call in time."""


class WorkerTable:
    """Workers by id."""

    def __init__(
        self,
        connect: Connect | None = None,
        *,
        wait_s: float = 60.0,
        seed: int | None = None,
        replay: ReplayUpstream | None = None,
        first_policy: str | None = None,
        timeouts: EngineTimeouts | None = None,
    ) -> None:
        """With several policies, a worker without a policy id serves `first_policy`."""
        self._connect = connect or connect_upstream
        self._timeouts = timeouts or EngineTimeouts()
        self._wait_s = wait_s
        self._first_policy = first_policy
        self._rng = random.Random(seed)
        self._workers: dict[str, Worker] = {}
        self.parked = ParkedUpstream()
        """The calls that wait for an answer through the control routes; every proxy has one such upstream."""
        self._built_in = {PARKED: Worker(WorkerRow(PARKED, None, PARKED, "", 0, "ready"), self.parked)}
        if replay is not None:
            self._built_in[REPLAY] = Worker(WorkerRow(REPLAY, None, REPLAY, "", 0, "ready"), replay)
        self._changed = asyncio.Condition()
        self._probes: set[asyncio.Task[None]] = set()
        self._watcher: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def taking(self, wanted: WorkerFilter) -> AsyncIterator[Worker]:
        """Choose a worker for a call and hold it; waits while none can take it. Raises `NoWorker` after
        `wait_s`.

        If the block raises `UpstreamLost`, a ready worker becomes suspect. Raises `UpstreamSilent` inside the
        block if the worker does not answer its health checks.
        """
        worker = self._choose(wanted)
        if worker is None:
            worker = await self._await_choice(wanted)
        worker.load += 1
        try:
            async with self._watched(worker):
                yield worker
        except UpstreamLost as error:
            # A worker that is drained or updated may have ended the call itself, which is no sign of a fault.
            if worker.row.state == "ready":
                self._suspect(worker, silent=isinstance(error, UpstreamSilent))
            raise
        finally:
            worker.load -= 1
            if worker.row.state != "ready":
                await self._notify()

    async def put(self, row: WorkerRow) -> WorkerRow:
        """Add or change a worker. Returns its row with the policy filled in."""
        row = replace(row, policy_id=row.policy_id or self._first_policy)
        known = self._workers.get(row.id)
        if known is None:
            known = self._workers[row.id] = Worker(row, self._connected(row))
        elif (known.row.address, known.row.kind) != (row.address, row.kind):
            known.upstream.close()
            known.upstream = self._connected(row)
        known.row = row
        known.suspect = False
        known.upstream.version = row.version
        await self._notify()
        return row

    async def set_state(
        self, worker_id: str, state: WorkerState, version: int | None = None
    ) -> WorkerRow | None:
        """Change a worker's state, and its version if given; None if there is no such worker."""
        worker = self._workers.get(worker_id)
        if worker is None:
            return None
        await self.put(
            replace(worker.row, state=state, version=worker.row.version if version is None else version)
        )
        return self._workers[worker_id].row

    async def idle(self, worker_id: str, timeout_s: float) -> int:
        """Wait until a worker has no calls in flight. Returns how many it has after at most `timeout_s`."""
        worker = self._workers[worker_id]
        try:
            async with asyncio.timeout(timeout_s), self._changed:
                await self._changed.wait_for(lambda: worker.load == 0)
        except TimeoutError:
            pass
        return worker.load

    def speaks(self, upstream: str | None) -> bool:
        """Whether an outside model answers the calls for this upstream."""
        wanted = WorkerFilter(upstream)
        named = upstream is not None and any(worker.serves(wanted) for worker in self._workers.values())
        return upstream in self._built_in or (named and not self._engines(wanted))

    def lacks(self, wanted: WorkerFilter) -> bool:
        """Whether every worker that matches is lost, starting or gone. One that is drained or updated is
        there: a call waits for it on purpose.
        """
        if wanted.upstream in self._built_in:
            return False
        matching = (worker for worker in self._workers.values() if worker.serves(wanted))
        return not any(
            worker.row.state in ("draining", "updating")
            or (worker.row.state == "ready" and not worker.suspect)
            for worker in matching
        )

    def all(self) -> list[Worker]:
        """All workers, by id."""
        return [self._workers[key] for key in sorted(self._workers)]

    def close(self) -> None:
        """Stop probing and close connections."""
        for probe in self._probes:
            probe.cancel()
        if self._watcher is not None:
            self._watcher.cancel()
        for worker in self._workers.values():
            worker.upstream.close()

    def _choose(self, wanted: WorkerFilter) -> Worker | None:
        if wanted.upstream in self._built_in:
            return self._built_in[wanted.upstream]
        pin, least = (wanted.pin, wanted.min_version) if self._engines(wanted) else (None, None)
        views = [worker.view() for worker in self._workers.values() if worker.serves(wanted)]
        chosen = choose(views, prefix_owner=wanted.prefix_owner, pin=pin, min_version=least, rng=self._rng)
        return None if chosen is None else self._workers[chosen]

    def _engines(self, wanted: WorkerFilter) -> bool:
        """Whether any matching worker is an engine, and so has a policy version."""
        serving = (worker for worker in self._workers.values() if worker.serves(wanted))
        return any(not is_text(worker.upstream) for worker in serving)

    async def _await_choice(self, wanted: WorkerFilter) -> Worker:
        try:
            async with asyncio.timeout(self._wait_s), self._changed:
                while (worker := self._choose(wanted)) is None:
                    await self._changed.wait()
                return worker
        except TimeoutError:
            states = (
                ", ".join(
                    f"{worker.row.id} v{worker.row.version} {worker.row.state}" for worker in self.all()
                )
                or "none"
            )
            raise NoWorker(
                f"No {wanted} was ready within {self._wait_s:.0f} s (workers: {states})."
            ) from None

    def _connected(self, row: WorkerRow) -> AnyUpstream:
        upstream = self._connect(row)
        if isinstance(upstream, HasTimeouts):
            upstream.use_timeouts(self._timeouts)
        return upstream

    @asynccontextmanager
    async def _watched(self, worker: Worker) -> AsyncIterator[None]:
        """End the call in the block with `UpstreamSilent` when its worker is given up."""
        # An outside model sends its answer whole, so its silence means nothing.
        if is_text(worker.upstream):
            yield
            return
        if self._watcher is None:
            self._watcher = asyncio.create_task(self._watch())
        if worker.quiet_since is None:
            worker.heard()
        ending = asyncio.timeout(None)
        worker.calls.add(ending)
        try:
            async with ending:
                yield
            # Cleared only after a call that ended normally: a cancelled one does not show whether the worker
            # would have answered.
            if worker.load == 1:
                worker.quiet_since = None
        except TimeoutError as error:
            if not ending.expired():
                raise
            raise UpstreamSilent(
                f"Worker {worker.row.id} at {worker.row.address} gave no token for {worker.quiet_s():.1f} s "
                "and does not answer its health checks. Is its process stopped?"
            ) from error
        finally:
            worker.calls.discard(ending)

    async def _watch(self) -> None:
        """Check the health of quiet workers, from the first call on."""
        loop = asyncio.get_running_loop()
        probe_s = self._timeouts.probe_s
        while True:
            await asyncio.sleep(probe_s / 2)
            for worker in self._workers.values():
                if (
                    worker.quiet_s() >= probe_s
                    and loop.time() - worker.checked_at >= probe_s
                    and not worker.suspect
                ):
                    worker.checked_at = loop.time()
                    self._spawn(self._check(worker))

    async def _check(self, worker: Worker) -> None:
        """Suspect a quiet worker if it fails its health check."""
        # A worker that passes may just be slow; `first_token_s` and `idle_s` of each call limit that.
        if await worker.upstream.healthy():
            if not worker.load:
                worker.quiet_since = None
        elif worker.quiet_s() >= self._timeouts.probe_s:
            self._suspect(worker, silent=True)

    def _suspect(self, worker: Worker, *, silent: bool) -> None:
        if not worker.suspect:
            worker.suspect = True
            what = "is silent" if silent else "was lost"
            log.warning("Engine worker %s at %s %s; probing it.", worker.row.id, worker.row.address, what)
            self._spawn(self._probe(worker, silent=silent))

    async def _probe(self, worker: Worker, *, silent: bool) -> None:
        """Probe a suspect worker until it can take calls again. While it is quiet, end its calls."""
        pause = _PROBE_S
        while worker.suspect and not await self._answers(worker, silent=silent):
            if worker.quiet_s() >= self._timeouts.probe_s:
                self._cut_off(worker)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _PROBE_MAX_S)
        log.info("Engine worker %s at %s can take calls again.", worker.row.id, worker.row.address)
        worker.suspect = False
        worker.quiet_since = None
        if worker.load:
            worker.heard()
        await self._notify()

    async def _answers(self, worker: Worker, *, silent: bool) -> bool:
        """Whether a worker is healthy and, if it was silent, samples a token."""
        if not await worker.upstream.healthy():
            return False
        # The HTTP server of a stuck engine may still report that it is healthy.
        if not silent or is_text(worker.upstream):
            return True
        upstream = cast("Upstream", worker.upstream)
        try:
            async with aclosing(
                upstream.generate(_PROBE_PROMPT, Sampling(max_tokens=1), salt="probe")
            ) as chunks:
                return any([chunk.ids async for chunk in chunks])
        except UpstreamError as error:
            log.info("Engine worker %s gives no token: %s", worker.row.id, error)
            return False

    def _cut_off(self, worker: Worker) -> None:
        for call in worker.calls:
            if not call.expired():
                call.reschedule(asyncio.get_running_loop().time())

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._probes.add(task)
        task.add_done_callback(self._probes.discard)

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()


def connect_upstream(row: WorkerRow, language: PolicyLanguage | None = None) -> AnyUpstream:
    """The client for a worker's kind. Raises `ConfigError` for an unknown kind or an invalid address."""
    try:
        kind: Callable[..., AnyUpstream] = load("upstream", row.kind)
        upstream = kind(row.address, version=row.version)
        if language is not None and isinstance(upstream, SpeaksLanguage):
            upstream.use_language(language)
    except ConfigError as error:
        raise ConfigError(f"Worker {row.id} at {row.address} cannot be used. {error}") from error
    return upstream
