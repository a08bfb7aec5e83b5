"""The node: claims rollouts under a lease, runs many at a time, and writes what came of them."""

import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from functools import partial
from pathlib import Path

from harnessgym.config import Config, validate
from harnessgym.errors import ConfigError
from harnessgym.harness import Harness
from harnessgym.registry import load
from harnessgym.reward import make_rewards
from harnessgym.rollout.control import ControlClient
from harnessgym.rollout.patience import Patience
from harnessgym.rollout.pipeline import Pipeline
from harnessgym.rollout.plan import Plan
from harnessgym.rollout.stop_reason import StopReason
from harnessgym.run_config import HarnessSection, RunConfig
from harnessgym.run_folder import RunFolder
from harnessgym.sandbox import SandboxBackend
from harnessgym.store import TraceStore, policies, rollouts, runs
from harnessgym.store.rollouts import RolloutOutcome, RolloutRow
from harnessgym.store.watch import Watch

_LOG = logging.getLogger("harnessgym.node")
_IDLE_S = 0.05


class NodeSettings(Config):
    """What `harnessgym node` takes."""

    run: Path
    """Folder of the run."""
    control_url: str
    """The proxy's control API: `unix:/path/to.sock` or `http://host:port`."""
    control_key: str
    """Its key."""
    proxy_socket_dir: Path
    """Folder that holds the proxy's socket, for sandboxes without a network."""
    proxy_url: str
    """The proxy's TCP address, for sandboxes that share this machine's network."""
    sandbox: str
    """Sandbox backend to use."""


async def serve(settings: NodeSettings) -> None:
    """Run rollouts until the run is done. Raises `SandboxError` when too much fails in a row for reasons not the policy's."""
    folder = RunFolder(settings.run)
    config = folder.config()
    with TraceStore.open(folder.store_url(), synchronous=config.store.synchronous) as store:
        async with ControlClient(settings.control_url, settings.control_key) as control, _backend(settings, folder) as backend:
            found = store.read(runs.only)
            if found is None:
                raise ConfigError(f"{folder.root} has no run in its store; start it with `harnessgym train`.")
            policy_id = store.write(lambda conn: policies.register(conn, found.id, config.policy.name))
            plan = Plan(found.id, policy_id, config, settings.sandbox)
            harnesses = {section.name: make_harness(section) for section in config.harnesses}
            rewards = make_rewards(config.rewards)
            line = Pipeline(store, control, backend, harnesses, config.session, plan.task, rewards)
            await Node(store, plan, line, config).serve()


def run(settings: NodeSettings) -> None:
    """Entry point of `harnessgym node`. At SIGTERM it kills what its rollouts run and removes their workspaces."""
    with contextlib.suppress(asyncio.CancelledError):
        asyncio.run(_serve_until_told(settings))


async def _serve_until_told(settings: NodeSettings) -> None:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    await serve(settings)


def make_harness(section: HarnessSection) -> Harness:
    """A harness from its section of a run's configuration."""
    factory = load("harness", section.type)
    harness: Harness = factory(validate(factory.settings, section.settings, f"harness {section.name!r}"))
    return harness


def _backend(settings: NodeSettings, folder: RunFolder) -> SandboxBackend:
    factory = load("sandbox", settings.sandbox)
    offered = {
        "proxy_socket_dir": settings.proxy_socket_dir,
        "proxy_url": settings.proxy_url,
        "workspace_root": folder.workspaces,
    }
    taken = {name: value for name, value in offered.items() if name in factory.settings.model_fields}
    backend: SandboxBackend = factory(factory.settings(**taken))
    return backend


class Node:
    """The loop around the pipeline."""

    def __init__(self, store: TraceStore, plan: Plan, pipeline: Pipeline, config: RunConfig) -> None:
        self.store, self.plan, self.pipeline, self.config = store, plan, pipeline, config
        self.holder = f"node-{os.getpid()}-{time.time_ns()}"
        self.running: dict[asyncio.Task[None], RolloutRow] = {}
        self.patience = Patience(config.node.abort_after_failures)
        self._renewed = time.monotonic()

    async def serve(self) -> None:
        """Claim and run until the run has ended."""
        try:
            with self.store.watch(_IDLE_S, min(1.0, self.config.node.lease_s / 8)) as watch:
                while (status := self._status()) not in ("done", "failed"):
                    await self.store.awrite(partial(self.plan.submit, status=status))
                    await self._requeue_lost()
                    await self._claim()
                    await self._breathe(watch)
        finally:
            for task in self.running:
                task.cancel()
            await asyncio.gather(*self.running, return_exceptions=True)

    def _status(self) -> str:
        run = self.store.read(runs.only)
        return "failed" if run is None else run.status

    async def _claim(self) -> None:
        free = self.config.node.max_running - len(self.running)
        if free > 0:
            run_id, lease = self.plan.run_id, self.config.node.lease_s
            rows = await self.store.awrite(lambda conn: rollouts.claim(conn, run_id, self.holder, lease, free))
            for row in rows:
                self.running[asyncio.create_task(self._rollout(row))] = row

    async def _breathe(self, watch: Watch) -> None:
        """Wait until a rollout ends, or others may have changed something; raise what a rollout raised; keep the leases."""
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
            task.result()
        if time.monotonic() - self._renewed > self.config.node.lease_s / 4 and self.running:
            self._renewed = time.monotonic()
            ids, lease = [row.id for row in self.running.values()], self.config.node.lease_s
            await self.store.awrite(lambda conn: rollouts.renew(conn, ids, self.holder, lease))

    async def _rollout(self, row: RolloutRow) -> None:
        outcome = await self.pipeline.run(row)
        attempts = self.config.node.max_attempts
        if outcome.verdict != "infrastructure_error":
            self.patience.succeeded()
            await self.store.awrite(lambda conn: rollouts.finish(conn, outcome))
            return
        _LOG.warning("rollout %s (%s): %s: %s", row.id, row.harness, outcome.stop_reason, outcome.detail)
        await self.store.awrite(lambda conn: rollouts.fail(conn, outcome, attempts))
        self.patience.failed(row, outcome)
        self.patience.groups(self.store.read(lambda conn: rollouts.group_states(conn, self.plan.run_id, "train")))

    async def _requeue_lost(self) -> None:
        """Rollouts whose node went silent run again."""
        for rollout_id in self.store.read(lambda conn: rollouts.lost(conn, self.plan.run_id)):
            gone = RolloutOutcome(rollout_id, StopReason.NODE_LOST, "infrastructure_error", detail="Its lease expired.")
            await self.store.awrite(partial(rollouts.fail, outcome=gone, max_attempts=sys.maxsize))
