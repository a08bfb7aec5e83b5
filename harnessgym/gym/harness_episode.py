"""One run of a harness whose model calls the caller answers, through a session of the `parked` upstream.

`SharedResources` holds what such runs share: a trace store, a proxy of their own and an open sandbox backend.
Everything is recorded as for any other rollout.
"""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sqlalchemy import Connection

from harnessgym.errors import HarnessGymError, ProxyError
from harnessgym.grading.grade import judge
from harnessgym.harness import Endpoint, Harness, start
from harnessgym.outcome.failure import Cause, RolloutFailed, StopReason
from harnessgym.provisioning import equipment, equipment_of, make_harness
from harnessgym.proxy_client import ControlClient, OpenedSession
from harnessgym.rollout.attempt import described
from harnessgym.rollout.node import NodeSettings, make_backend
from harnessgym.run_config.run import HarnessSection
from harnessgym.run_config.session import SessionOptions
from harnessgym.run_folder import RunFolder
from harnessgym.sandbox import ExecResult, Sandbox, SandboxBackend, needs, require
from harnessgym.store import TraceStore, policies, rollouts, runs
from harnessgym.store.backend import url_of_file
from harnessgym.store.rollouts import GroupSpec, RolloutOutcome
from harnessgym.task import Grade, Task
from harnessgym.task_setup.workspace_setup import furnish
from harnessgym.wrapping.own_proxy import OwnProxy, add_run, find_upstream, own_proxy

_POLL_S = 20.0
_LOOK_S = 1.0
"""Seconds between two checks that the proxy is alive."""
_LEASE_S = 365 * 86_400.0
_MODEL = "policy"
_PARTS = frozenset({"content", "reasoning", "tool_calls"})
_TOKENS = frozenset({"token_ids", "logprobs", "version", "finish_reason"})


@dataclass(frozen=True, slots=True)
class SharedResources:
    """What the episodes share; see `desk`."""

    store: TraceStore
    run_id: str
    proxy: OwnProxy
    control: ControlClient
    backend: SandboxBackend
    harness: Harness
    section: HarnessSection
    sandbox: str


@dataclass(frozen=True, slots=True)
class Waiting:
    """A model call that waits for an answer."""

    call: Mapping[str, Any]
    """The call as `GET /control/sessions/{id}/pending` returns it."""
    count: int
    """Number of waiting calls, including this one."""


@asynccontextmanager
async def desk(
    folder: Path,
    harness: str,
    settings: Mapping[str, Any],
    sandbox: str,
    policy: Path | None,
    hidden: tuple[Path, ...] = (),
) -> AsyncIterator[SharedResources]:
    """Open what the episodes share, in a folder. The proxy ends with the thread that started it.

    Raises `ConfigError`, `HarnessError` or `SandboxError` for settings that cannot be used.
    """
    section = HarnessSection(name=harness, type=harness, settings=dict(settings))
    upstream = find_upstream("scripted:", policy, None)
    run = RunFolder(folder)
    async with AsyncExitStack() as stack:
        folder.mkdir(parents=True, exist_ok=True)
        store = stack.enter_context(TraceStore.create(url_of_file(folder / "traces.db")))
        run_id = store.write(lambda conn: add_run(conn, "harness_env", upstream))
        proxy = stack.enter_context(own_proxy(store, run, run_id, upstream, _MODEL))
        address = proxy.address
        settings_of_node = NodeSettings(
            run=folder,
            control_url=address.control_url,
            control_key=address.control_key,
            proxy_socket_dir=address.socket_dir,
            proxy_url=address.url,
            sandbox=sandbox,
        )
        backend = await stack.enter_async_context(
            make_backend(settings_of_node, run.workspaces, hidden=hidden)
        )
        control = await stack.enter_async_context(ControlClient(address.control_url, address.control_key))
        made = make_harness(section, backend.capabilities)
        yield SharedResources(store, run_id, proxy, control, backend, made, section, sandbox)


class HarnessEpisode:
    """One run. `begin` starts it and `aclose`, which may be called twice, ends it."""

    def __init__(self, shared: SharedResources, task: Task) -> None:
        self.task = task
        self._desk = shared
        self.rollout_id = ""
        self._session: OpenedSession | None = None
        self._sandbox: Sandbox
        self._running: asyncio.Task[ExecResult] | None = None
        self._ended = False
        self._stack = AsyncExitStack()

    async def begin(self, wall_s: float, turns: int) -> None:
        """Set a sandbox up and start the harness in it. Raises `HarnessGymError` or `OSError` on failure."""
        shared = self._desk
        task = self.task
        shared.proxy.revive()
        require(shared.backend.capabilities, needs(task))
        try:
            opened = shared.backend.open(
                task.limits, equipment(shared.harness, task, shared.backend.capabilities)
            )
            self._sandbox = await self._stack.enter_async_context(opened)
            await furnish(task, self._sandbox)
            self.rollout_id = await shared.store.awrite(self._add_rollout)
            options = SessionOptions(
                upstream="parked",
                constraints="prompt",
                answer_timeout_s=wall_s,
                side_calls=tuple(shared.harness.side_calls),
            )
            limits = {"turns": turns, "tokens": task.limits.tokens}
            self._session = await shared.control.open_session(self.rollout_id, limits=limits, options=options)
            launch = shared.harness.launch(task, Endpoint(self._sandbox.proxy_url, self._session.key, _MODEL))
            launch = replace(launch, limits=replace(launch.limits, wall_s=wall_s))
            self._running = asyncio.create_task(start(launch, replace(task, files={}), self._sandbox))
        except BaseException:
            await self.aclose()
            raise

    async def next(self) -> Waiting | None:
        """Wait for the oldest waiting call; None when the harness has ended. Raises the harness's error."""
        assert self._running is not None
        while not self._running.done():
            asking = asyncio.create_task(self._pending(_POLL_S))
            try:
                # The poll may take 20 s. Look more often, so that a harness that ends and a dead proxy are
                # noticed.
                while not asking.done() and not self._running.done():
                    await asyncio.wait(
                        {asking, self._running}, timeout=_LOOK_S, return_when=asyncio.FIRST_COMPLETED
                    )
                    self._check_proxy()
            finally:
                if not asking.done():
                    asking.cancel()
                    await asyncio.gather(asking, return_exceptions=True)
            if (
                not asking.cancelled()
                and (waiting := asking.result()) is not None
                and not self._running.done()
            ):
                return waiting
        self._check_proxy()  # or a harness that it took along would be judged
        self._running.result()
        return None

    async def answer(self, call: Mapping[str, Any], said: str) -> str | None:
        """Answer a call with text as the policy would write it, or with the parts or tokens of a JSON object.

        Returns why an answer is invalid; the call then keeps waiting. Returns None for a valid answer, and
        for a call whose client is gone.
        """
        assert self._session is not None
        self._check_proxy()
        try:
            await self._desk.control.answer(self._session.session_id, str(call["call_id"]), **_answer(said))
        except ProxyError as error:
            waiting = await self._pending(0.0)
            if waiting is not None and waiting.call["call_id"] == call["call_id"]:
                return str(error)
        return None

    async def judged(self) -> tuple[Grade, StopReason]:
        """Grade the workspace. Returns the grade and how the harness ended.

        Raises `RolloutFailed` if the harness never called.
        """
        assert self._running is not None
        result = self._running.result()
        if await self._seal() == 0:
            raise RolloutFailed(Cause.NO_CALLS, f"The harness never called the proxy. {described(result)}")
        fresh = equipment_of(self.task, grades=True)
        grade = await judge(
            self.task, self._sandbox, lambda: self._desk.backend.open(self.task.limits, fresh)
        )
        reason = StopReason.FINISHED if result.ok else StopReason.HARNESS_ERROR
        verdict = "valid" if grade.tampered is None else "tampered"
        rewards = dict(grade.rewards) if grade.tampered is None else {"reward": 0.0}
        outcome = RolloutOutcome(
            self.rollout_id,
            reason,
            verdict,  # type: ignore[arg-type]
            rewards,
            detail=grade.tampered,
        )
        await self._desk.store.awrite(lambda conn: rollouts.finish(conn, outcome))
        self._ended = True
        return grade, reason

    @property
    def timed_out(self) -> bool:
        """Whether the harness was killed at its time limit."""
        running = self._running
        return (
            running is not None and running.done() and not running.cancelled() and running.result().timed_out
        )

    async def failed(self, cause: Cause, detail: str) -> None:
        """Record an infrastructure failure, which has no reward."""
        if self.rollout_id and not self._ended:
            outcome = RolloutOutcome(
                self.rollout_id, StopReason.SANDBOX_ERROR, "infrastructure_error", detail=detail, cause=cause
            )
            await self._desk.store.awrite(lambda conn: rollouts.fail(conn, outcome, 0))
            self._ended = True

    async def aclose(self) -> None:
        """End the harness, its session and its sandbox."""
        try:
            # Sealed first: a harness that is still running gets no more answers while its sandbox goes.
            await self._seal()
        finally:
            if self._running is not None:
                self._running.cancel()
                await asyncio.gather(self._running, return_exceptions=True)
            await self._stack.aclose()
            if self.rollout_id and not self._ended:
                self._ended = True
                await self._desk.store.awrite(
                    lambda conn: rollouts.cancel(conn, [self.rollout_id], "The episode was cut off.")
                )

    def _check_proxy(self) -> None:
        """Raises `ProxyError` if the proxy has ended. Its sockets stay open, so a request would hang."""
        try:
            self._desk.proxy.check()
        except HarnessGymError as error:
            raise ProxyError(str(error)) from error

    async def _seal(self) -> int:
        """Seal the session. Returns its number of calls, or 0 if it was already sealed."""
        session = self._session
        self._session = None
        if session is None:
            return 0
        self._check_proxy()
        return (await self._desk.control.seal(session.session_id, grace_s=0.0)).calls

    async def _pending(self, timeout_s: float) -> Waiting | None:
        assert self._session is not None
        response = await self._desk.control.pending(self._session.session_id, timeout_s=timeout_s)
        return None if response["pending"] is None else Waiting(response["pending"], int(response["waiting"]))

    def _add_rollout(self, conn: Connection) -> str:
        shared = self._desk
        task_id = runs.add_task(conn, "harness_env", self.task)
        policy_id = policies.register(conn, shared.run_id, "policy")
        harnesses = (shared.section.name,)
        spec = GroupSpec(
            shared.run_id, task_id, policy_id, "harness_env", 0, 0, {}, harnesses, shared.sandbox, (0,)
        )
        return rollouts.start(conn, spec, f"wrap-{os.getpid()}", _LEASE_S)


def _answer(text: str) -> dict[str, Any]:
    """An action as arguments of the control route."""
    try:
        action = json.loads(text)
    except (ValueError, RecursionError):
        return {"text": text}
    if isinstance(action, dict) and action and set(action) <= _PARTS:
        return {"message": action}
    if isinstance(action, dict) and "token_ids" in action and set(action) <= _TOKENS:
        return action
    return {"text": text}
