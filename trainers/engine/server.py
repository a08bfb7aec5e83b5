"""An embedded engine's core process: weights, the engine's thread and the weight agent. Its child serves
HTTP.

harnessgym engine MODEL_DIR --port 8000
"""

import asyncio
import contextlib
import ctypes
import gc
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import torch

from harnessgym import heartbeat
from harnessgym.errors import ConfigError, HarnessGymError, PolicyError
from harnessgym.store import TraceStore
from harnessgym.store.policies import PolicyVersion
from trainers.engine.engine import Engine, build_engine
from trainers.engine.router import EngineRouter
from trainers.engine.settings import EngineSettings
from trainers.policies.loading import load_served
from trainers.policies.model_folder import read_config, why_not_native
from trainers.policy import Policy
from trainers.weights.agent import WeightAgent, read_newest
from trainers.weights.settings import AgentSettings


class FrontProcess:
    """A started front, which waits at the other end of `link` for the `Hello` message.

    It is killed when the thread that creates it ends: create it on the main thread.
    """

    def __init__(self, listener: socket.socket) -> None:
        """Start it. The listening socket now belongs to it."""
        self.link, far = socket.socketpair()
        fds = (far.fileno(), listener.fileno())
        argv = [sys.executable, "-m", "trainers.engine.front", *map(str, fds), str(os.getpid())]
        with far, listener, _interrupts_blocked():
            self._process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, pass_fds=fds)

    def stop(self, grace_s: float) -> None:
        """Refuse further requests, and wait at most `grace_s` for those in flight."""
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(grace_s)

    def reap(self) -> int:
        """Wait for a front that has closed the link; returns its exit status."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(0.5)
        return self.close()

    def close(self) -> int:
        """End it within half a second; returns its exit status."""
        self.stop(0.5)
        self._process.kill()
        self.link.close()
        return self._process.wait()


@contextlib.contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Block SIGINT in this thread; processes that are started meanwhile keep it blocked."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


log = logging.getLogger(__name__)

_GRACE_S = 1.0
"""Time for requests in flight to end by themselves; then they end with "abort"."""

_M_MMAP_THRESHOLD = -3
_M_TRIM_THRESHOLD = -1
"""Options of glibc's mallopt."""


class EngineInstaller:
    """The engine as the weight agent sees it, from the event loop."""

    kind = "embedded"
    carries_over = True

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def version(self) -> int:
        """Version that is served."""
        return self._engine.version

    async def look(self) -> None:
        """Do nothing: the version is known in this process."""

    async def pause(self) -> None:
        """Do nothing: the contexts of calls in flight are computed again."""

    async def resume(self) -> None:
        """Do nothing: the engine never paused."""

    async def install(self, weights: dict[str, torch.Tensor], version: PolicyVersion) -> None:
        """Serve other weights, and check them with one forward pass.

        Raises `PolicyError` if they do not fit or compute nothing usable; the old ones are then served.
        Raises `UpstreamError` if the engine has stopped.
        """
        before = self.version
        previous = await asyncio.to_thread(self._engine.policy.published)
        await self._load(weights, version.version)
        try:
            await asyncio.wrap_future(self._engine.check())
        except HarnessGymError as error:
            await self._load(previous, before)
            raise PolicyError(str(error)) from error

    async def _load(self, weights: dict[str, torch.Tensor], version: int) -> None:
        await asyncio.wrap_future(self._engine.install(weights, version))


def load_engine(settings: EngineSettings) -> Engine:
    """The engine of these settings, not yet started, with the newest committed version if it follows a
    policy.
    """
    torch.set_num_threads(settings.threads)
    policy = load_served(
        settings.model,
        settings.implementation,
        dtype=getattr(torch, settings.dtype),
        device=settings.device,
    )
    version = _load_newest(policy, settings.agent) if settings.agent else 0
    engine = build_engine(
        policy,
        max_batch=settings.max_batch,
        cached_sequences=settings.cached_sequences,
        max_length=settings.max_length,
        prefill_tokens=settings.prefill_tokens,
        seed=settings.seed,
        version=version,
    )
    if notice := engine.runner.notice():
        reason = why_not_native(read_config(settings.model)) or 'implementation = "transformers".'
        log.warning("%s runs without our own module: %s %s.", settings.worker_id, reason, notice)
    return engine


def _load_newest(policy: Policy, agent: AgentSettings) -> int:
    """Load the newest committed version, if there is one; returns the policy's version."""
    with TraceStore.open(agent.store) as store:
        newest = read_newest(store, agent.policy_id, agent.mirror)
    if newest is None:
        return 0
    version, weights = newest
    policy.load(weights)
    return version.version


def listen(settings: EngineSettings) -> socket.socket:
    """The socket to serve on. Raises `ConfigError` if the address cannot be taken."""
    if settings.fd is not None:
        return socket.socket(fileno=settings.fd)
    try:
        return socket.create_server((settings.host, settings.port), backlog=1024)
    except OSError as error:
        raise ConfigError(
            f"Cannot listen on {settings.host}:{settings.port}: {error}. Choose another --port."
        ) from error


def keep_memory() -> None:
    """Configure glibc to keep freed blocks."""
    # By default each large activation is mapped, zeroed page by page and unmapped again.
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(_M_MMAP_THRESHOLD, 1 << 30)
        libc.mallopt(_M_TRIM_THRESHOLD, 1 << 30)


async def follow(engine: Engine, settings: EngineSettings, address: str) -> None:
    """Run the weight agent of a started engine that is reached at `address`, if it has one, until cancelled.

    Raises `PolicyError` if the policy has a version that cannot be served.
    """
    if settings.agent is None:
        return
    try:
        await WeightAgent(settings.agent, settings.worker_id, address, EngineInstaller(engine)).run()
    except HarnessGymError as error:
        # The message says it all.
        log.error("The weight agent of %s ended: %s", settings.worker_id, error)  # noqa: TRY400
        raise


async def run(engine: Engine, settings: EngineSettings, front: FrontProcess, address: str) -> None:
    """Serve until SIGINT or SIGTERM, then end engine and front. Raises the agent's error, or
    `SystemExit(1)`.
    """
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    over: asyncio.Future[BaseException | None] = loop.create_future()

    def end(error: BaseException | None = None) -> None:
        if not over.done():
            over.set_result(error)

    def lost() -> None:
        if not over.done():
            log.error(
                "The HTTP process of %s ended with status %d, so the engine ends too.",
                settings.worker_id,
                front.reap(),
            )
            end(SystemExit(1))

    async def announce() -> None:
        await ready.wait()
        sys.stdout.write(f"engine {settings.worker_id} serves {settings.names[0]} at {address}\n")
        sys.stdout.flush()
        await follow(engine, settings, address)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, end)
    router = EngineRouter(engine, settings, front.link)
    engine.start(lambda _: loop.call_soon_threadsafe(end, SystemExit(1)), router.flush)
    heartbeat.follow(loop, router.front_answers)
    listening = router.start(
        lambda: loop.call_soon_threadsafe(ready.set), lambda: loop.call_soon_threadsafe(lost)
    )
    following = asyncio.create_task(announce())
    following.add_done_callback(
        lambda task: None if task.cancelled() or not task.exception() else end(task.exception())
    )
    error = await over
    following.cancel()
    await asyncio.gather(following, asyncio.to_thread(front.stop, _GRACE_S), return_exceptions=True)
    await asyncio.gather(asyncio.to_thread(engine.close), asyncio.to_thread(front.close))
    await asyncio.to_thread(listening.join)
    if error is not None:
        raise error


def serve(settings: EngineSettings) -> None:
    """Serve until SIGINT or SIGTERM. Prints one line with the address when it does.

    Raises `PolicyError` if the policy has a version that cannot be served: a restart does not help. Exits
    with status 1 if the engine's thread fails or the front dies: a restart helps.
    """
    keep_memory()
    listener = listen(settings)
    host = listener.getsockname()
    address = f"http://{host[0]}:{host[1]}" if isinstance(host, tuple) else f"unix:{host}"
    front = FrontProcess(listener)
    try:
        engine = load_engine(settings)
        # These objects live as long as the process. If the garbage collector looked through them, a step
        # would stall for tens of milliseconds.
        gc.freeze()
        asyncio.run(run(engine, settings, front, address))
    finally:
        front.close()
