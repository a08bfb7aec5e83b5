"""A campaign: one harness runs every task of a set `samples` times, with a proxy and node of this process.

Its folder holds everything: `campaign.json` (the settings), `traces.db`, `results.jsonl` (a line per
rollout), `summary.json` and logs. After an interruption the same campaign in the same folder resumes.
"""

import asyncio
import hashlib
import json
import os
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import anyio.to_thread
from sqlalchemy import Connection

from harnessgym.batch_rollout import results
from harnessgym.batch_rollout.settings import CampaignSettings, chosen_tasks, digest_of
from harnessgym.engine_timeouts import EngineTimeouts
from harnessgym.errors import ConfigError, TaskError
from harnessgym.provisioning import make_harness
from harnessgym.proxy_client import ControlClient
from harnessgym.registry import load
from harnessgym.rollout.node import Node, NodeSettings, endpoints, make_backend
from harnessgym.rollout.pipeline import Pipeline
from harnessgym.rollout.resource_admission import Pressure
from harnessgym.rollout.stage import StageCounts
from harnessgym.run_config.run import HarnessSection, NodeSection
from harnessgym.run_folder import RunFolder, write_json
from harnessgym.run_identity import enter_run, find_run, forget_processes, record_run
from harnessgym.sandbox import SandboxBackend, needs, require
from harnessgym.store import TraceStore, policies, rollout_states, rollouts, runs, workers
from harnessgym.store.backend import url_of_file
from harnessgym.store.rollout_states import RolloutState
from harnessgym.store.rollouts import GroupSpec
from harnessgym.store.workers import WorkerRow
from harnessgym.task import Task
from harnessgym.wrapping.own_proxy import (
    OwnProxy,
    RunningProxy,
    WrapUpstream,
    add_run,
    find_upstream,
    own_proxy,
)

PURPOSE = "rollout"
_NAME = "rollout"
"""Name of a campaign's run."""
_SUBMIT = 64
"""Groups submitted in one transaction."""
_LOOK_S = 0.5
_OVERLAP_S = 5.0
"""How far each look reaches back for rows that were committed late."""
FREE = ("folder", "at_once", "serve", *EngineTimeouts.model_fields)
"""Settings that may differ when a campaign resumes, because they change no result."""
_NOT_RECORDED_ONCE = {
    "session": CampaignSettings.model_fields["session"].default.model_dump(mode="json"),
    "hidden": [],
    "second_opinion": "off",
    "integrity": "any",
    "parser": "auto",
}
"""Settings of campaigns whose record lacks them."""


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """A campaign at one moment."""

    total: int
    by_status: dict[str, int]
    """Attempts by status."""
    done: int
    """Slots with a final result."""
    not_graded: int
    reward: float | None
    """Mean reward so far."""
    tokens_per_s: float
    eta_s: float | None
    stages: Sequence[StageCounts]


Observer = Callable[[BatchProgress], None]
"""Called on the node's event loop, so it must return quickly."""


@dataclass
class CampaignPlan:
    """All groups of a campaign, each submitted once, in order."""

    run_id: str
    policy_id: str
    settings: CampaignSettings
    tasks: Sequence[Task]
    _by_id: dict[str, Task] = field(default_factory=dict)
    _submitted: bool = False

    def __post_init__(self) -> None:
        self._by_id = {task.id: task for task in self.tasks}

    def task(self, key: str) -> Task:
        """A task by its id. Raises `TaskError` if there is none."""
        if key not in self._by_id:
            raise TaskError(f"The campaign has no task {key!r}. Has its task set changed?")
        return self._by_id[key]

    def submit(self, conn: Connection, status: str) -> int:
        """Submit the next groups, however many run: the node decides how many it claims."""
        if self._submitted or status != "training":
            return 0
        first = sum(rollouts.group_states(conn, self.run_id, PURPOSE).values())
        chosen = range(first, min(first + _SUBMIT, len(self.tasks)))
        for ordinal in chosen:
            self._add(conn, ordinal)
        self._submitted = first + len(chosen) >= len(self.tasks)
        return len(chosen)

    def _add(self, conn: Connection, ordinal: int) -> None:
        options = self.settings
        task = self.tasks[ordinal]
        spec = GroupSpec(
            run_id=self.run_id,
            task_id=runs.add_task(conn, options.tasks or "", task),
            policy_id=self.policy_id,
            purpose=PURPOSE,
            ordinal=ordinal,
            submitted_version=0,
            sampling={"temperature": options.temperature, "max_tokens": options.max_tokens},
            harnesses=(options.harness,) * options.samples,
            sandbox=options.sandbox,
            seeds=tuple(_seed(options.seed, task.id, slot) for slot in range(options.samples)),
        )
        rollouts.submit(conn, spec)


class BatchRollout:
    """One campaign in one folder.

    ```python
    campaign = BatchRollout(CampaignSettings(folder=Path("runs/x"), tasks="shell", upstream="scripted", ...))
    summary = asyncio.run(campaign.run(print))
    ```
    """

    def __init__(self, settings: CampaignSettings, upstream: WrapUpstream | None = None) -> None:
        """`upstream` answers the calls; without it `settings.upstream` is looked up.

        Raises `ConfigError` for settings that cannot run.
        """
        if settings.tasks is None and not settings.serve:
            raise ConfigError(
                "Nothing to do: give --tasks, or --serve HOST:PORT for rollouts that come over HTTP."
            )
        self.settings = settings
        self.upstream = upstream or find_upstream(
            settings.upstream, settings.policy, settings.max_length, settings.parser
        )
        self.tasks, self.remarks = chosen_tasks(settings)
        """The tasks to run, and remarks about the set."""
        self.section = harness_of(settings)
        self.folder = RunFolder(settings.folder.resolve())
        self.options = NodeSection(
            max_running=settings.at_once, max_attempts=settings.retries + 1, serve=settings.serve
        )
        self._seen: set[str] = set()
        self._cursor = 0.0
        self._final: dict[tuple[int, int], RolloutState] = {}
        self._began = time.monotonic()
        self._before: tuple[int, int] | None = None
        self._claim: int | None = None

    def claim(self) -> None:
        """Claim the folder. Raises `ConfigError` if it holds another campaign or another process runs it."""
        if self._claim is None:
            self._claim = _claim(self.folder, self.settings, self.tasks)

    @property
    def store_url(self) -> str:
        """URL of the trace store."""
        return url_of_file(self.folder.root / "traces.db")

    async def run(self, observe: Observer = lambda _: None) -> dict[str, Any]:
        """Run to the end and return the summary, which is also written. Then the folder is free again.

        Raises `HarnessGymError` if the campaign cannot continue.
        """
        self.claim()
        try:
            return await self._run(observe)
        finally:
            self._release()

    def _release(self) -> None:
        if self._claim is not None:
            os.close(self._claim)
            self._claim = None

    async def _run(self, observe: Observer) -> dict[str, Any]:
        with TraceStore.create(self.store_url) as store:
            run_id, policy_id = _enter(self.folder, store, self.upstream, self.settings)
            for state in self._write_results(store, run_id):
                self._note(state)
            with own_proxy(
                store, self.folder, run_id, self.upstream, self.settings.model, self.settings
            ) as proxy:
                plan = CampaignPlan(run_id, policy_id, self.settings, self.tasks)
                try:
                    async with self._node(store, plan, proxy.address) as node:
                        await self._attend(store, node, proxy, run_id, observe)
                finally:
                    self._write_results(store, run_id)
            return self._conclude(store, run_id)

    @asynccontextmanager
    async def _node(self, store: TraceStore, plan: CampaignPlan, proxy: RunningProxy) -> AsyncIterator[Node]:
        settings = NodeSettings(
            run=self.folder.root,
            control_url=proxy.control_url,
            control_key=proxy.control_key,
            proxy_socket_dir=proxy.socket_dir,
            proxy_url=proxy.url,
            sandbox=self.settings.sandbox,
        )
        backend = make_backend(settings, self.folder.workspaces, hidden=self.settings.hidden)
        self._refuse_unfit(backend)
        async with ControlClient(proxy.control_url, proxy.control_key) as control, backend:
            harnesses = {self.section.name: make_harness(self.section, backend.capabilities)}
            answered = self.settings.session.model_copy(
                update={"upstream": proxy.outside, "replay": proxy.replay}
            )
            line = Pipeline(store, control, backend, harnesses, answered, plan.task)
            line.second_opinion = self.settings.second_opinion
            line.integrity = self.settings.integrity
            node = Node(store, plan, line, self.options, Pressure(self.folder.workspaces, self.options))
            async with endpoints(node, self.settings.sandbox, "policy", self.folder):
                yield node

    def _refuse_unfit(self, backend: SandboxBackend) -> None:
        """Check all tasks before any runs. Raises `CapabilityError` naming what the backend lacks."""
        for task in self.tasks:
            require(backend.capabilities, needs(task))

    async def _attend(
        self, store: TraceStore, node: Node, proxy: OwnProxy, run_id: str, observe: Observer
    ) -> None:
        """Run the node until everything is done, collect results, and restart the proxy if it dies."""
        serving = asyncio.create_task(node.serve())
        try:
            while not serving.done():
                await asyncio.wait({serving}, timeout=_LOOK_S)
                proxy.revive()  # not in another thread: a child ends with the thread that started it
                observe(await anyio.to_thread.run_sync(self._look, store, node, run_id))
                # The node ends by itself once it reads this status, so that it finishes what it is writing.
                if self.tasks and len(self._final) >= self._total and not self.settings.serve:
                    await store.awrite(lambda conn: runs.set_status(conn, run_id, "done"))
            await serving
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)

    @property
    def _total(self) -> int:
        return len(self.tasks) * self.settings.samples

    def _look(self, store: TraceStore, node: Node, run_id: str) -> BatchProgress:
        self._collect(store, run_id)
        return self._progress(store, node, run_id)

    def _collect(self, store: TraceStore, run_id: str) -> None:
        """Append the results that became final since the last look."""
        # The looks overlap, so `_seen` keeps a rollout from being written twice.
        changes = store.read(lambda conn: rollout_states.changed(conn, run_id, self._cursor - _OVERLAP_S))
        fresh = []
        for at, kind, state in changes:
            self._cursor = max(self._cursor, at)
            if kind != "ended" or state.id in self._seen or not state.final:
                continue
            self._note(state)
            fresh.append(state)
        if fresh:
            with (self.folder.root / "results.jsonl").open("a") as file:
                file.write(results.written(fresh))

    def _note(self, state: RolloutState) -> None:
        self._seen.add(state.id)
        self._cursor = max(self._cursor, state.ended_at or 0.0)
        if state.purpose == PURPOSE:
            self._final[state.ordinal, state.slot] = state

    def _write_results(self, store: TraceStore, run_id: str) -> list[RolloutState]:
        """Rewrite the results in order, in place of those appended as they came."""
        states = store.read(lambda conn: rollout_states.slots(conn, run_id, PURPOSE))
        final = [state for state in states if state.final]
        results.replace_file(self.folder.root / "results.jsonl", results.written(final))
        return final

    def _progress(self, store: TraceStore, node: Node, run_id: str) -> BatchProgress:
        by_status = store.read(lambda conn: rollouts.rollout_states(conn, run_id))
        tokens = store.read(lambda conn: runs.tokens_sampled(conn, run_id))
        done = len(self._final)
        seconds = time.monotonic() - self._began
        if self._before is None:
            self._before = done, tokens
        fresh = done - self._before[0]
        rewards = [state.reward for state in self._final.values() if state.reward is not None]
        return BatchProgress(
            total=self._total,
            by_status=by_status,
            done=done,
            not_graded=done - len(rewards),
            reward=sum(rewards) / len(rewards) if rewards else None,
            tokens_per_s=(tokens - self._before[1]) / seconds,
            eta_s=(self._total - done) * seconds / fresh if fresh else None,
            stages=node.stages.counts(),
        )

    def _conclude(self, store: TraceStore, run_id: str) -> dict[str, Any]:
        states = self._write_results(store, run_id)
        summary = results.summarise(states, pass_reward=1.0)
        summary |= {"seconds": round(time.monotonic() - self._began, 2), "harness": self.settings.harness}
        summary |= {"sandbox": self.settings.sandbox, "upstream": self.settings.upstream, "run": run_id}
        write_json(self.folder.root / "summary.json", summary)
        return summary


def harness_of(settings: CampaignSettings) -> HarnessSection:
    """The campaign's harness. Raises `ConfigError` or `HarnessError` if it or the sandbox cannot be used."""
    section = HarnessSection(name=settings.harness, type=settings.harness, settings=settings.harness_settings)
    make_harness(section)
    if problem := load("sandbox", settings.sandbox).unavailable():
        raise ConfigError(f"The sandbox backend {settings.sandbox!r} cannot be used: {problem}")
    return section


def _claim(folder: RunFolder, settings: CampaignSettings, tasks: Sequence[Task]) -> int:
    """Claim the folder for this campaign: the descriptor that holds the claim.

    Raises `ConfigError` if it holds another campaign or one that runs.
    """
    from harnessgym.supervisor.preparation import claim_folder

    asked = {name: value for name, value in settings.model_dump(mode="json").items() if name not in FREE}
    asked["tasks_digest"] = digest_of(tasks)
    path = folder.root / "campaign.json"
    try:
        recorded = _NOT_RECORDED_ONCE | json.loads(path.read_text())
    except FileNotFoundError:
        recorded = None
    if recorded is None and (folder.config_path.exists() or (folder.root / "traces.db").exists()):
        raise ConfigError(f"{folder.root} already has other content. Give another --folder.")
    changed = (
        []
        if recorded is None
        else [name for name in sorted({*asked, *recorded}) if asked.get(name) != recorded.get(name)]
    )
    # Compared before the claim, so that a refused command leaves a running campaign's folder as it is.
    if changed and recorded is not None:
        differences = "; ".join(
            f"{name} was {recorded.get(name)!r} and is {asked.get(name)!r}" for name in changed
        )
        raise ConfigError(
            f"{folder.root} holds another campaign: {differences}. Give another --folder, or remove that "
            "one first."
        )
    claim = claim_folder(folder)
    if recorded is None:
        write_json(path, asked)
    return claim


def _enter(
    folder: RunFolder, store: TraceStore, upstream: WrapUpstream, settings: CampaignSettings
) -> tuple[str, str]:
    """Ids of the folder's run and its policy. Rollouts that an earlier process left running are requeued."""
    run = find_run(folder, store, lambda run: run.name == _NAME)
    if run is None:
        values = settings.model_dump(mode="json")
        run = enter_run(
            folder, store, _NAME, lambda conn, run_id: add_run(conn, _NAME, upstream, values, run_id)
        )
    else:
        store.read(partial(forget_processes, folder=folder, run=run))
        record_run(folder, run)
        store.write(partial(_take_up, run_id=run.id, upstream=upstream))
    run_id = run.id
    return run_id, store.write(lambda conn: policies.register(conn, run_id, "policy"))


def _take_up(conn: Connection, run_id: str, upstream: WrapUpstream) -> None:
    rollouts.expire(conn, run_id)
    runs.set_status(conn, run_id, "training")
    if upstream.kind != "replay":
        workers.upsert(
            conn, WorkerRow(f"{run_id}-upstream", run_id, upstream.kind, upstream.address, 0, "ready")
        )


def _seed(seed: int, task: str, slot: int) -> int:
    """31 bits that depend only on the campaign's seed, the task and the slot."""
    # Not from the attempt or the time: a retried rollout samples with the same seed.
    digest = hashlib.blake2b(f"{seed} {task} {slot}".encode(), digest_size=4).digest()
    return int.from_bytes(digest) >> 1
