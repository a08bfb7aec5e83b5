"""One attempt at one rollout: prepare, run, reconstruct, evaluate. Each part holds a place in its stage.

However the attempt ends (normally, with an error or by cancellation), its session is sealed and its sandbox
removed.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import anyio.to_thread

from harnessgym.errors import HarnessError, HarnessGymError, ProxyError, StoreError, TaskError
from harnessgym.faults.plan import FaultPlan, record
from harnessgym.faults.shims import ShimmedSandbox
from harnessgym.grading.artifacts import CollectedArtifacts, collected_artifacts
from harnessgym.grading.differential.differential_test import opinion_on
from harnessgym.grading.differential.suite import with_opinion
from harnessgym.grading.grade import verdict
from harnessgym.grading.integrity import no_opinion, refusal_of
from harnessgym.harness import Endpoint, Harness, Launch, start
from harnessgym.outcome.engine_silence import blamed
from harnessgym.outcome.failure import (
    CONSEQUENCES,
    Cause,
    Phase,
    RolloutFailed,
    StopReason,
    cause_of_end,
    cause_of_error,
)
from harnessgym.provisioning import equipment, equipment_of
from harnessgym.proxy_client import OpenedSession
from harnessgym.reward import RewardContext, score_all
from harnessgym.rollout.resource_admission import Pressure
from harnessgym.rollout.stage import Stage, Stages
from harnessgym.sandbox import ExecResult, Sandbox, needs, require
from harnessgym.store import calls as call_rows
from harnessgym.store import events
from harnessgym.store.events import EventRow
from harnessgym.store.rewards import RewardRow
from harnessgym.store.rollouts import RolloutOutcome, RolloutRow
from harnessgym.task import Grade, Task
from harnessgym.task_setup.steps import laying, step_task, through_steps
from harnessgym.task_setup.workspace_setup import furnish
from harnessgym.traces.trajectories import rows_of

if TYPE_CHECKING:
    from harnessgym.rollout.pipeline import Pipeline

_LOG = logging.getLogger("harnessgym.node")
_SEAL_S = 1.0
_TAIL = 2_000
"""Bytes of a failed harness's output that the rollout row keeps."""


class Attempt:
    """One attempt at a claimed rollout. Call `run` once."""

    def __init__(self, pipeline: "Pipeline", stages: Stages, pressure: Pressure, row: RolloutRow) -> None:
        self.pipeline = pipeline
        self.stages = stages
        self.pressure = pressure
        self.row = row
        self.phase: Phase = "prepare"
        self.latencies: dict[str, float] = {}
        """Seconds by stage, summed over all steps. `wait.STAGE` is the time in that stage's queue. Prepare
        also has `wait.room`, `prepare.open` and `prepare.setup`."""
        self._task: Task
        self._sandbox: Sandbox
        self._session: OpenedSession | None = None
        self._ran: list[tuple[float, float]] = []
        """When the harness began and ended, one pair per step."""
        self._faulty: ShimmedSandbox | None = None
        self._holding = AsyncExitStack()
        """Holds the sandbox and its share of this machine's memory until `_release`."""
        self._left = AsyncExitStack()
        """Holds the artifacts collected from the sandbox until they are graded."""
        self._left_behind: list[str] = []
        """One sentence for each thing that could not be removed."""

    async def run(self) -> RolloutOutcome:
        """Run to the outcome. Our own errors and the machine's are returned as an infrastructure error."""
        try:
            try:
                async with self.pipeline.proxy_watch.watching():
                    return await self._stages()
            finally:
                # The sandbox goes first: once it is gone nothing can call the proxy, so sealing needs no
                # grace. What the other steps could not remove is recorded last.
                await self._release()
                await self._left.aclose()
                await self._seal_behind()
                await self._record_left_behind()
        except (HarnessGymError, OSError, MemoryError) as error:
            cause = cause_of_error(error, self.phase)
            return self.failed(cause, str(error) if isinstance(error, HarnessGymError) else _refused(error))

    async def _stages(self) -> RolloutOutcome:
        async with self._hold_slot(self.stages.prepare):
            await self._prepare()
            launch = None if self._task.steps else await self._launch(self._task)
        if launch is None:
            return await self._steps()
        async with self._hold_slot(self.stages.run):
            result = await self._run(launch, self._task)
        self.phase = "reconstruct"
        calls = await self._seal()
        async with self._hold_slot(self.stages.reconstruct):
            await self._collect_faults()
            await self._reconstruct(result, self._task.limits.wall_s, calls)
            evidence = await self._left.enter_async_context(self._collect_artifacts(self._task))
            if self._task.verifier == "separate" and "sandbox" not in self.pipeline.needed:
                await self._release()  # those that wait for a grader keep no sandbox from others
        async with self._hold_slot(self.stages.evaluate):
            self.phase = "evaluate"
            return await self._evaluate(result, evidence)

    async def _steps(self) -> RolloutOutcome:
        """Run the harness once per step of the task, in one session; each step is graded before the next."""
        ended: list[tuple[ExecResult, float]] = []

        async def act(asked: Task) -> None:
            async with laying(self._sandbox, first=not ended):
                launch = await self._launch(asked)
            async with self._hold_slot(self.stages.run):
                ended.append((await self._run(launch, asked), asked.limits.wall_s))

        async def grade(asked: Task) -> Grade:
            async with self._hold_slot(self.stages.evaluate):
                self.phase = "evaluate"
                async with self._collect_artifacts(asked) as evidence:
                    task_grade = await self._grade(asked, evidence)
            self.phase = "prepare"
            return task_grade

        plain = self._sandbox if self._faulty is None else self._faulty.sandbox
        whole = await through_steps(self._task, plain, act, grade)
        self.phase = "reconstruct"
        calls = await self._seal()
        async with self._hold_slot(self.stages.reconstruct):
            await self._collect_faults()
            late = next((step for step in ended if step[0].timed_out), ended[-1])
            await self._reconstruct(*late, calls)
        self.phase = "evaluate"
        return await self._rewarded(ended[-1][0], whole)

    @asynccontextmanager
    async def _hold_slot(self, stage: Stage) -> AsyncIterator[None]:
        """Hold a place in a stage and add the time to `latencies`."""
        async with stage.place() as waited_s:
            self._book(f"wait.{stage.name}", waited_s)
            with_it = time.perf_counter()
            try:
                yield
            finally:
                self._book(stage.name, time.perf_counter() - with_it)

    def _book(self, name: str, seconds: float) -> None:
        self.latencies[name] = round(self.latencies.get(name, 0.0) + seconds, 5)

    async def _prepare(self) -> None:
        """Open the sandbox, set the workspace up and open the session. Only the launch remains."""
        pipeline = self.pipeline
        row = self.row
        task = await anyio.to_thread.run_sync(pipeline.task_of, row)
        harness = self._harness()
        require(pipeline.backend.capabilities, needs(task))
        began = time.perf_counter()
        await self._holding.enter_async_context(
            self.pressure.admitted(task.limits.memory_mb, f"rollout {row.id}")
        )
        self._book("wait.room", time.perf_counter() - began)
        self.phase, began = "open", time.perf_counter()
        asked = step_task(task, task.steps[0]) if task.steps else task
        opened = pipeline.backend.open(task.limits, equipment(harness, asked, pipeline.backend.capabilities))
        self._task, self._sandbox = task, await self._holding.enter_async_context(opened)
        self.phase = "prepare"
        self._book("prepare.open", time.perf_counter() - began)
        if (setup_s := await furnish(task, self._sandbox)) is not None:
            self._book("prepare.setup", setup_s)
        if pipeline.faults.inject:
            self._faulty = ShimmedSandbox(
                self._sandbox, FaultPlan(pipeline.faults, row.seed), pipeline.proxy_socket
            )
            self._sandbox = self._faulty
        self._session = await pipeline.control.open_session(
            row.id,
            sampling={**_sampling(row), "seed": row.seed},
            limits={
                "turns": min(task.limits.turns, row.sampling.get("turns", task.limits.turns)),
                "tokens": task.limits.tokens,
                **_least(row),
            },
            min_version=row.submitted_version,
            options=pipeline.options.model_copy(
                update={"side_calls": (*pipeline.options.side_calls, *harness.side_calls)}
            ),
        )

    async def _launch(self, task: Task) -> Launch:
        """How to start the harness on a task or on one step of it. Its files are already written."""
        assert self._session is not None
        launch = self._harness().launch(
            task, Endpoint(self._sandbox.proxy_url, self._session.key, seed=self.row.seed)
        )
        for path, text in launch.files.items():
            await self._sandbox.write(path, text.encode())
        return replace(launch, files={})

    async def _run(self, launch: Launch, task: Task) -> ExecResult:
        """Run the harness on a task or on one step of it."""
        self.phase = "run"
        began = time.monotonic()
        try:
            return await start(launch, replace(task, files={}), self._sandbox)
        finally:
            self._ran.append((began, time.monotonic()))

    def _harness(self) -> Harness:
        known = self.pipeline.harnesses
        if self.row.harness not in known:
            raise HarnessError(
                f"The run has no harness {self.row.harness!r} (it has: {', '.join(sorted(known))})."
            )
        return known[self.row.harness]

    async def _collect_faults(self) -> None:
        """Record the injected faults in the trace and remove their tools from the workspace."""
        if self._faulty is not None:
            account = await self._faulty.collect()
            await self.pipeline.store.awrite(
                lambda conn: record(conn, self.row.id, account.applied, account.doubt)
            )

    async def _reconstruct(self, result: ExecResult, wall_s: float, calls: int) -> None:
        """Read back what the policy did. Raises `RolloutFailed` if that cannot be graded."""
        row = self.row
        trajectory = await self.pipeline.store.aread(
            lambda conn: rows_of(conn, row.id, group_id=row.group_id)
        )
        if trajectory.incomplete is not None:
            raise RolloutFailed(Cause.ENGINE_ERROR, trajectory.incomplete)
        # A proxy outage and a silent engine are checked before the harness is blamed: either makes a correct
        # harness fail or stop without a call.
        if calls == 0 or not result.ok:
            absence = await self.pipeline.proxy_watch.absence(self._ran[0][0], self._ran[-1][1])
            if absence is not None:
                raise RolloutFailed(Cause.PROXY_ERROR, f"{absence}. {described(result)}")
        silences = await self.pipeline.store.aread(lambda conn: call_rows.silences(conn, row.id))
        if silent := blamed(silences, timed_out=result.timed_out, wall_s=wall_s):
            raise RolloutFailed(Cause.ENGINE_SILENT, silent)
        if calls == 0:
            refused = await self.pipeline.store.aread(
                lambda conn: events.of_rollout(conn, row.id, "refused_request")
            )
            raise RolloutFailed(Cause.NO_CALLS, f"{without_calls(refused)} {described(result)}")

    def _collect_artifacts(self, task: Task) -> AbstractAsyncContextManager[CollectedArtifacts]:
        return collected_artifacts(task, self._sandbox, self.pipeline.backend.root, self._left_behind.append)

    async def _evaluate(self, result: ExecResult, evidence: CollectedArtifacts) -> RolloutOutcome:
        return await self._rewarded(result, await self._grade(self._task, evidence))

    async def _grade(self, task: Task, evidence: CollectedArtifacts) -> Grade:
        """The grade of a task or of one step, with a second opinion if the run asks for one.

        Raises TaskError for a reward that is not as sound as the run demands.
        """
        backend = self.pipeline.backend
        bare = equipment_of(task, grades=True)
        shared = self._sandbox if task.verifier == "shared" else None
        pipeline = self.pipeline
        if pipeline.second_opinion == "required" and self._task.steps:
            raise TaskError(no_opinion(self._task))
        grade = await verdict(
            task,
            evidence,
            shared,
            lambda: backend.open(task.limits, bare),
            self._left_behind.append,
            by_value=pipeline.by_value,
            required=pipeline.second_opinion == "required",
        )
        if pipeline.integrity == "by_value" and grade.integrity != "by_value" and grade.rewards["reward"] > 0:
            raise TaskError(refusal_of(task))
        if (
            pipeline.second_opinion == "evidence"
            and grade.tampered is None
            and grade.rewards["reward"] >= 1.0
        ):
            opinion = await opinion_on(self._task, evidence.folder, lambda: backend.open(task.limits, bare))
            grade = with_opinion(grade, opinion)
        return grade

    async def _rewarded(self, result: ExecResult, grade: Grade) -> RolloutOutcome:
        scores = await self._scores(grade)
        refused = await self.pipeline.store.aread(
            lambda conn: events.of_rollout(conn, self.row.id, "refused_request")
        )
        cause = cause_of_end(result, {event.attributes.get("limit") for event in refused})
        return self._judged(result, grade, cause, scores)

    async def _scores(self, grade: Grade) -> tuple[RewardRow, ...]:
        """The scores of the run's rewards and the reward to train on. A tampered workspace is not scored."""
        pipeline = self.pipeline
        sandbox = self._sandbox
        if grade.tampered is not None:
            return () if pipeline.weights is None else (pipeline.weights.tampered(self.row.id),)
        if not pipeline.rewards and pipeline.weights is None:
            return ()
        asked = "sandbox" in pipeline.needed
        record = RewardContext(
            pipeline.store, self.row.id, self._task, sandbox if asked else None, pipeline.control
        )
        scores = await score_all(pipeline.rewards, record, grade.rewards)
        if pipeline.weights is None:
            return scores
        return (*scores, pipeline.weights.total(self.row.id, grade.rewards["reward"], scores))

    async def _seal(self, grace_s: float = 1.0) -> int:
        """Refuse further calls. Returns how many there were."""
        assert self._session is not None
        session = self._session
        self._session = None
        return (await self.pipeline.control.seal(session.session_id, grace_s=grace_s)).calls

    async def _seal_behind(self) -> None:
        """Seal a session that an error or cancellation left open. Does not wait for a proxy that is gone."""
        if self._session is None:
            return
        try:
            async with asyncio.timeout(_SEAL_S):
                await self._seal(grace_s=0.0)
        except (ProxyError, TimeoutError) as error:
            _LOG.warning(
                "The session of rollout %s was not sealed: %s",
                self.row.id,
                error or "the proxy does not answer",
            )

    async def _release(self) -> None:
        """Remove the sandbox. If that fails, the reaper removes it later and the outcome does not change."""
        try:
            await self._holding.aclose()
        except (HarnessGymError, OSError) as error:
            self._left_behind.append(f"Its sandbox could not be removed: {error}")

    async def _record_left_behind(self) -> None:
        """Record in the trace what could not be removed. It has no effect on the verdict."""
        rows = [
            EventRow(self.row.id, "left_behind", {"problem": each}, source="node")
            for each in self._left_behind
        ]
        for row in rows:
            _LOG.warning("rollout %s: %s", row.rollout_id, row.attributes["problem"])
        if rows:
            try:
                await self.pipeline.store.awrite(lambda conn: events.add_many(conn, rows))
            except StoreError as error:
                _LOG.warning("rollout %s: what was left behind could not be recorded: %s", self.row.id, error)

    def _judged(
        self, result: ExecResult, grade: Grade, cause: Cause | None, scores: tuple[RewardRow, ...]
    ) -> RolloutOutcome:
        reason = StopReason.FINISHED if cause is None else CONSEQUENCES[cause].stop_reason
        rewards = (
            dict(grade.rewards)
            if grade.tampered is None
            else {**dict.fromkeys(grade.rewards, 0.0), "reward": 0.0}
        )
        return RolloutOutcome(
            self.row.id,
            reason,
            "valid" if grade.tampered is None else "tampered",
            rewards,
            detail=grade.tampered or (None if cause is None else described(result)),
            latencies=self.latencies,
            scores=scores,
            cause=cause,
            grading=dict(grade.evidence) or None,
        )

    def failed(self, cause: Cause, detail: str) -> RolloutOutcome:
        """The outcome of an attempt that failed through no fault of the agent."""
        reason = CONSEQUENCES[cause].stop_reason
        latencies = self.latencies
        return RolloutOutcome(
            self.row.id, reason, "infrastructure_error", detail=detail, latencies=latencies, cause=cause
        )


def _refused(error: BaseException) -> str:
    from harnessgym.disk import full_disk

    return full_disk(error) or f"The machine refused: {error!r}."


def without_calls(refused: Sequence[EventRow]) -> str:
    """Why a harness made no call: the proxy refused it, or it never asked."""
    if not refused:
        return "The harness never called the proxy."
    message = refused[0].attributes.get("message") or refused[0].attributes.get("problem", "")
    return f"The proxy refused the harness's {len(refused)} requests and made no call. The first: {message}"


def described(result: ExecResult) -> str:
    """How a harness ended, with its last output."""
    ending = result.ending if result.timed_out else f"{result.ending} after {result.wall_s:.1f} s"
    flooded = result.stdout_truncated or result.stderr_truncated
    dropped = " Output beyond the limit was dropped." if flooded else ""
    return f"It ended: {ending}.{dropped} Its last output:\n{result.last_output(_TAIL)}"


def _sampling(row: RolloutRow) -> dict[str, Any]:
    """The group's sampling settings, without the limit on turns."""
    return {name: value for name, value in row.sampling.items() if name != "turns"}


def _least(row: RolloutRow) -> dict[str, dict[str, int]]:
    """The oldest version of each further policy that may answer, as a keyword argument."""
    return {"min_versions": row.submitted_versions} if row.submitted_versions else {}
