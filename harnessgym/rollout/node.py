"""The node: claims rollouts under a lease, runs many at a time and records their outcomes."""

import asyncio
import contextlib
import logging
import math
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Protocol

import anyio.to_thread
from sqlalchemy import Connection

from harnessgym import heartbeat
from harnessgym.config import Config
from harnessgym.config.control_key import ControlKey, environment_field
from harnessgym.errors import ConfigError
from harnessgym.outcome.failure import CONSEQUENCES, Cause
from harnessgym.provisioning import make_harness
from harnessgym.proxy_client import ControlClient
from harnessgym.registry import load, look_in
from harnessgym.reward import make_rewards, weights_of
from harnessgym.rollout.pipeline import Pipeline
from harnessgym.rollout.plan import GroupPlan
from harnessgym.rollout.resource_admission import CircuitBreaker, Pressure
from harnessgym.rollout.stage import Stages
from harnessgym.run_config.run import NodeSection
from harnessgym.run_folder import RunFolder
from harnessgym.run_identity import run_of
from harnessgym.sandbox import SandboxBackend
from harnessgym.sandboxes.relay import SandboxRelay
from harnessgym.store import TraceStore, backlog, leases, policies, rollouts, runs
from harnessgym.store.backend import StoreWatch
from harnessgym.store.rollouts import RolloutOutcome, RolloutRow
from harnessgym.store.runs import RunRow

_LOG = logging.getLogger("harnessgym.node")
_IDLE_S = 0.05
_MOST_CONNECTIONS = 4_096
"""Connections that a node relays at one time to a proxy on another machine."""
_LOOK_S = 0.2
"""How often a node checks which of its rollouts it has lost."""


class NodeSettings(Config):
    """Settings of `harnessgym node`."""

    run: Path
    """Folder of the run."""
    control_url: str
    """The proxy's control API: `unix:/path/to.sock` or `http://host:port`."""
    control_key: ControlKey = environment_field()
    """Its key; HARNESSGYM_CONTROL_KEY in the environment if not given."""
    proxy_socket_dir: Path | None = None
    """Folder that holds the proxy's socket, for sandboxes without a network. Without one, as where the
    proxy runs on another machine, the node makes one and carries its connections to `proxy_url`."""
    proxy_url: str
    """The proxy's TCP address, for sandboxes that share this machine's network."""
    sandbox: str
    """Sandbox backend to use."""
    run_id: str = ""
    """The run, where the folder is a copy of the configuration alone."""
    name: str = "node"
    """Name of this node, which no other of the run may have."""
    workspaces: Path | None = None
    """Folder for what rollouts work in, on a disk of this machine; one in the run's folder if not given."""


async def serve(settings: NodeSettings, leaving: asyncio.Event | None = None) -> None:
    """Run rollouts until the run is done, or until `leaving` is set and all claimed rollouts have ended.

    Raises `SandboxError` after too many failures in a row that are not the policy's fault.
    """
    folder = RunFolder(settings.run)
    config = folder.config()
    workspaces = settings.workspaces or folder.workspaces
    look_in(*config.code)
    with TraceStore.open(folder.store_url(), synchronous=config.store.synchronous) as store:
        async with (
            ControlClient(settings.control_url, settings.control_key) as control,
            proxy_socket(settings) as socket_dir,
            make_backend(settings, workspaces, socket_dir, config.sandbox.hidden) as backend,
        ):
            run_row = await store.aread(partial(_started_run, run_id=settings.run_id, folder=folder))
            if run_row is None:
                raise ConfigError(f"{folder.root} has no run in its store; start it with `harnessgym train`.")
            policy_id = await store.awrite(
                lambda conn: policies.register(conn, run_row.id, config.policy.name)
            )
            plan = await anyio.to_thread.run_sync(GroupPlan, run_row.id, policy_id, config, settings.sandbox)
            harnesses = {
                section.name: make_harness(section, backend.capabilities) for section in config.harnesses
            }
            rewards = make_rewards(config.rewards)
            at = socket_dir / "proxy.sock"
            pipeline = Pipeline(
                store, control, backend, harnesses, config.session, plan.task, rewards, config.faults, at
            )
            pipeline.weights = weights_of(config)
            pipeline.second_opinion = config.node.second_opinion
            pipeline.integrity = config.node.integrity
            pressure = Pressure(workspaces, config.node)
            node = Node(store, plan, pipeline, config.node, pressure, settings.name, leaving)
            async with endpoints(node, settings.sandbox, config.policy.name, folder):
                await node.serve()


def _started_run(conn: Connection, run_id: str, folder: RunFolder) -> RunRow | None:
    return runs.get(conn, run_id) if run_id else run_of(conn, folder)


@asynccontextmanager
async def endpoints(node: "Node", sandbox: str, policy: str, folder: RunFolder) -> AsyncIterator[None]:
    """Serve the node's HTTP endpoints if its settings ask for them. Raises `ConfigError` if that fails."""
    if not node.options.serve:
        yield
        return
    try:
        from harnessgym.rollout.endpoints import Endpoints, new_key, served
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"Serving rollouts needs {error.name}: pip install 'harnessgym-rl[node]'."
        ) from error
    async with served(Endpoints(node, sandbox, policy, new_key()), node.options.serve, folder) as url:
        _LOG.info("rollouts are taken at %s; the key is in %s", url, folder.root / "endpoints.json")
        yield


@asynccontextmanager
async def proxy_socket(settings: NodeSettings) -> AsyncIterator[Path]:
    """Yield the folder of the proxy's socket: the given one, or a new one that relays to `proxy_url`."""
    if settings.proxy_socket_dir is not None:
        yield settings.proxy_socket_dir
        return
    with tempfile.TemporaryDirectory(prefix="harnessgym-node-") as made:
        folder = Path(made)
        # Sandboxes may run under other users, which must reach the folder and connect to the socket.
        folder.chmod(0o755)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(folder / "proxy.sock"))
        (folder / "proxy.sock").chmod(0o666)
        listening = await SandboxRelay(settings.proxy_url, most=_MOST_CONNECTIONS).serve(listener)
        try:
            yield folder
        finally:
            listening.close()


def run(settings: NodeSettings) -> None:
    """Entry point of `harnessgym node`.

    On SIGTERM it kills the processes of its rollouts and removes their workspaces. On SIGUSR1 it stops
    claiming rollouts and exits when those it has are done.
    """
    with contextlib.suppress(asyncio.CancelledError):
        asyncio.run(_serve_until_told(settings))


async def _serve_until_told(settings: NodeSettings) -> None:
    task = asyncio.current_task()
    assert task is not None
    leaving = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, leaving.set)
    heartbeat.follow(asyncio.get_running_loop())
    await serve(settings, leaving)


def make_backend(
    settings: NodeSettings, workspaces: Path, socket_dir: Path | None = None, hidden: tuple[Path, ...] = ()
) -> SandboxBackend:
    """The node's sandbox backend, with those of the node's settings that its own settings declare."""
    factory = load("sandbox", settings.sandbox)
    offered = {
        "proxy_socket_dir": socket_dir or settings.proxy_socket_dir,
        "proxy_url": settings.proxy_url,
        "workspace_root": workspaces,
        "hidden": hidden,
    }
    options = {name: value for name, value in offered.items() if name in factory.settings.model_fields}
    backend: SandboxBackend = factory(factory.settings(**options))
    return backend


class Planner(Protocol):
    """Decides what a node's run submits next."""

    run_id: str

    def submit(self, conn: Connection, status: str) -> int:
        """Submit what the run's status calls for. Returns the number of groups."""
        ...


class Node:
    """The loop that claims rollouts and runs them through the pipeline."""

    def __init__(
        self,
        store: TraceStore,
        plan: Planner,
        pipeline: Pipeline,
        options: NodeSection,
        pressure: Pressure,
        name: str = "node",
        leaving: asyncio.Event | None = None,
    ) -> None:
        """Once `leaving` is set, the node ends when its rollouts are done."""
        self.store = store
        self.plan = plan
        self.pipeline = pipeline
        self.options = options
        self.pressure = pressure
        self.holder = f"{name}@{socket.gethostname()}-{os.getpid()}-{time.time_ns()}"
        self.leaving = leaving or asyncio.Event()
        self.running: dict[asyncio.Task[None], RolloutRow] = {}
        self._stopping: set[asyncio.Task[None]] = set()
        self.stages = Stages(options)
        self.patience = CircuitBreaker(options.abort_after_failures)
        self._renewed = self._looked = time.monotonic()
        self._shown = -math.inf

    async def serve(self) -> None:
        """Claim and run until the run has ended, or the node was asked to leave and its rollouts are done."""
        try:
            longest_s = min(1.0, self.options.lease_s / 8)
            with await anyio.to_thread.run_sync(self.store.watch, _IDLE_S, longest_s) as watch:
                while not self.leaving.is_set() or self.running:
                    status = await self._status()
                    if status in ("done", "failed"):
                        break
                    await self._show()
                    await self.store.awrite(partial(self.plan.submit, status=status))
                    await self._requeue_lost()
                    await self._claim()
                    await self._breathe(watch)
                    await self._stop_taken()
        finally:
            for task in self.running:
                self._stop(task)
            await asyncio.gather(*self.running, return_exceptions=True)
            await self._hide()

    async def _show(self) -> None:
        """Write the heartbeat of a node that takes rollouts; remove it once the node is leaving."""
        lease = self.options.lease_s
        if self.leaving.is_set():
            await self._hide()
        elif time.monotonic() - self._shown > lease / 4:
            self._shown = time.monotonic()
            await self.store.awrite(
                partial(leases.announce_node, run_id=self.plan.run_id, holder=self.holder, ttl_s=lease)
            )

    async def _hide(self) -> None:
        if self._shown > -math.inf:
            self._shown = -math.inf
            await self.store.awrite(
                partial(leases.withdraw_node, run_id=self.plan.run_id, holder=self.holder)
            )

    async def _status(self) -> str:
        run = await self.store.aread(partial(runs.get, run_id=self.plan.run_id))
        return "failed" if run is None else run.status

    async def _claim(self) -> None:
        free = 0 if self.leaving.is_set() else self.stages.room(len(self.running))
        if free > 0 and not await self.pressure.tight():
            run_id = self.plan.run_id
            lease = self.options.lease_s
            rows = await self.store.awrite(
                lambda conn: rollouts.claim(conn, run_id, self.holder, lease, free)
            )
            for row in rows:
                self.running[asyncio.create_task(self._rollout(row))] = row

    async def _breathe(self, watch: StoreWatch) -> None:
        """Wait until a rollout ends or the store may have changed, then renew leases.

        Raises what a rollout raised.
        """
        changed = asyncio.create_task(watch.changed())
        try:
            await asyncio.wait({changed, *self.running}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            changed.cancel()
            await asyncio.wait({changed})
        if not changed.cancelled():
            changed.result()
        for task in [task for task in self.running if task.done()]:
            del self.running[task]
            self._stopping.discard(task)
            if not task.cancelled():
                task.result()
        if time.monotonic() - self._renewed > self.options.lease_s / 4 and self.running:
            self._renewed = time.monotonic()
            ids = [row.id for row in self.running.values()]
            lease = self.options.lease_s
            await self.store.awrite(lambda conn: rollouts.renew(conn, ids, self.holder, lease))

    async def _stop_taken(self) -> None:
        """Stop rollouts that were cancelled, or that another node took because this one's lease expired."""
        if time.monotonic() - self._looked < _LOOK_S or not self.running:
            return
        self._looked = time.monotonic()
        ids = [row.id for row in self.running.values()]
        ids_to_stop = set(await self.store.aread(lambda conn: rollouts.not_running(conn, ids, self.holder)))
        for task, row in self.running.items():
            if row.id in ids_to_stop:
                self._stop(task)

    def _stop(self, task: asyncio.Task[None]) -> None:
        """Cancel once: a second cancellation would interrupt the clean-up of the first."""
        if task not in self._stopping:
            self._stopping.add(task)
            task.cancel()

    async def _rollout(self, row: RolloutRow) -> None:
        attempt = self.pipeline.attempt(row, self.stages, self.pressure)
        try:
            outcome = await attempt.run()
        except asyncio.CancelledError:
            await self.store.awrite(lambda conn: rollouts.settle(conn, row.id, attempt.latencies))
            raise
        except Exception as error:  # noqa: BLE001 - a plugin's bug must not end the node
            _LOG.exception("rollout %s (%s)", row.id, row.harness)
            outcome = attempt.failed(Cause.UNKNOWN, f"{type(error).__name__}: {error}")
        if outcome.verdict != "infrastructure_error":
            self.patience.succeeded()
            await self.store.awrite(lambda conn: rollouts.finish(conn, outcome))
            return
        _LOG.warning("rollout %s (%s): %s: %s", row.id, row.harness, outcome.cause, outcome.detail)
        if await self._fail(outcome, row.attempt):
            self.patience.failed(row, outcome)
            self.patience.groups(await self.store.aread(partial(_group_states, run_id=self.plan.run_id)))

    async def _requeue_lost(self) -> None:
        """Submit rollouts again whose lease has expired."""
        for rollout_id in await self.store.aread(lambda conn: rollouts.lost(conn, self.plan.run_id)):
            cause = Cause.NODE_LOST
            detail = "Its lease expired."
            reason = CONSEQUENCES[cause].stop_reason
            await self._fail(
                RolloutOutcome(rollout_id, reason, "infrastructure_error", detail=detail, cause=cause), 0
            )

    async def _fail(self, outcome: RolloutOutcome, attempt: int) -> bool:
        """Record a failure and retry as its cause requires. False if the rollout was no longer running."""
        consequence = CONSEQUENCES[outcome.cause or Cause.UNKNOWN]
        attempts = {"never": 0, "bounded": self.options.max_attempts, "always": sys.maxsize}[
            consequence.retry
        ]
        wait_s = consequence.wait_s(attempt)
        return await self.store.awrite(lambda conn: rollouts.fail(conn, outcome, attempts, wait_s))


def _group_states(conn: Connection, run_id: str) -> dict[str, int]:
    """Training groups by state. `dropped` counts only groups that failed rollouts ended."""
    return rollouts.group_states(conn, run_id, "train") | {"dropped": backlog.too_few(conn, run_id)}
