"""One rollout through its four stages: prepare, run, reconstruct, evaluate.

The harness is a black box: it gets a workspace, a key and an address. What it did is read from the store afterwards, and judged
from the workspace once everything it had started is dead.
"""

import asyncio
import math
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from harnessgym.disk import full_disk
from harnessgym.errors import HarnessError, HarnessGymError, TaskError
from harnessgym.harness import Endpoint, Harness, start
from harnessgym.registry import load
from harnessgym.reward import Record, Reward, score_all
from harnessgym.rollout.control import ControlClient
from harnessgym.rollout.stop_reason import StopReason
from harnessgym.sandbox import ExecResult, Sandbox, SandboxBackend, needs, require
from harnessgym.session_options import SessionOptions
from harnessgym.store import TraceStore, events
from harnessgym.store.rewards import RewardRow
from harnessgym.store.rollouts import RolloutOutcome, RolloutRow, Verdict
from harnessgym.task import Grade, Task
from harnessgym.traces.trajectories import rows_of

_LIMITS = {
    "contract": StopReason.CONTRACT_VIOLATED,
    "turns": StopReason.TURN_LIMIT,
    "tokens": StopReason.TOKEN_LIMIT,
}
"""By what the proxy calls them."""
_TAIL = 2_000
"""Bytes of a failed harness's output that its rollout row keeps."""


class Grader(Protocol):
    """Judges a workspace."""

    def __call__(self, task: Task, workspace: Path) -> Grade:
        """Rewards, or how the workspace was tampered with."""
        ...


@dataclass
class Stopwatch:
    """Seconds by stage."""

    stages: dict[str, float] = field(default_factory=dict)
    _since: float = field(default_factory=time.perf_counter)

    def lap(self, stage: str) -> None:
        """Book the time since the last lap under a stage."""
        now = time.perf_counter()
        self.stages[stage] = round(now - self._since, 5)
        self._since = now


@dataclass(frozen=True)
class Pipeline:
    """What every rollout of a node shares."""

    store: TraceStore
    control: ControlClient
    backend: SandboxBackend
    harnesses: dict[str, Harness]
    options: SessionOptions
    task: Callable[[str], Task]
    rewards: Mapping[str, Reward] = field(default_factory=dict)
    """By name; asked after the task's grader, in order."""

    async def run(self, row: RolloutRow) -> RolloutOutcome:
        """Run one claimed rollout to its outcome. Failures that are not the policy's come back as an infrastructure error."""
        watch = Stopwatch()
        try:
            task = self.task(row.task_key)
            require(self.backend.capabilities, needs(task))
            async with self.backend.open(task.limits) as sandbox:
                return await self._stages(row, task, sandbox, watch)
        except HarnessGymError as error:
            return _infrastructure(row, StopReason.SANDBOX_ERROR, str(error), watch)
        except OSError as error:  # a full disk, files or processes used up: a matter of this machine at this moment
            detail = full_disk(error) or f"The machine refused: {error!r}."
            return _infrastructure(row, StopReason.SANDBOX_ERROR, detail, watch)

    async def _stages(self, row: RolloutRow, task: Task, sandbox: Sandbox, watch: Stopwatch) -> RolloutOutcome:
        harness = self._harness(row.harness)
        session = await self.control.open_session(
            row.id,
            sampling={**row.sampling, "seed": row.seed},
            limits={"turns": task.limits.turns, "tokens": task.limits.tokens},
            min_version=row.submitted_version,
            options=self.options.model_copy(update={"side_calls": (*self.options.side_calls, *harness.side_calls)}),
        )
        try:
            launch = harness.launch(task, Endpoint(sandbox.proxy_url, session.key))
            watch.lap("prepare")
            result = await start(launch, task, sandbox)
        except (HarnessGymError, OSError):
            await self.control.seal(session.session_id)
            raise
        watch.lap("run")
        calls = (await self.control.seal(session.session_id)).calls
        trajectory = self.store.read(lambda conn: rows_of(conn, row.id, group_id=row.group_id))
        watch.lap("reconstruct")
        if trajectory.incomplete is not None:
            return _infrastructure(row, StopReason.ENGINE_ERROR, trajectory.incomplete, watch)
        if calls == 0:
            return _infrastructure(row, StopReason.NO_CALLS, f"The harness never called the proxy. {_describe(result)}", watch)
        grade = await _grade(task, sandbox)
        scores = await self._scores(row, task, sandbox, grade)
        watch.lap("evaluate")
        refused = self.store.read(lambda conn: events.of_rollout(conn, row.id, "refused_request"))
        limits = {event.attributes.get("limit") for event in refused}
        return replace(_judged(row, result, grade, watch, _stop_reason(result, limits)), scores=scores)

    async def _scores(self, row: RolloutRow, task: Task, sandbox: Sandbox, grade: Grade) -> tuple[RewardRow, ...]:
        """What the run's rewards say; nothing of a workspace that was tampered with."""
        if grade.tampered is not None:
            return ()
        return await score_all(self.rewards, Record(self.store, row.id, task, sandbox, self.control), grade.rewards)

    def _harness(self, name: str) -> Harness:
        if name not in self.harnesses:
            raise HarnessError(f"The run has no harness {name!r} (it has: {', '.join(sorted(self.harnesses))}).")
        return self.harnesses[name]


def _stop_reason(result: ExecResult, limits: Collection[str | None]) -> StopReason:
    """`limits` are the budgets that the harness ran into."""
    if result.timed_out:
        return StopReason.TIMEOUT
    reached = next((reason for limit, reason in _LIMITS.items() if limit in limits), None)
    if reached is not None:
        return reached
    if not result.ok:
        return StopReason.HARNESS_ERROR
    if result.stdout_truncated or result.stderr_truncated:
        return StopReason.OUTPUT_LIMIT
    return StopReason.FINISHED


async def _grade(task: Task, sandbox: Sandbox) -> Grade:
    grader: Grader = load("grader", task.grader)
    where = f"The grader {task.grader!r} of task {task.id!r}"
    try:
        grade = await asyncio.to_thread(grader, task, sandbox.workspace)
    except Exception as error:  # a grader's bug must not be a reward, nor end the node
        raise TaskError(f"{where} failed: {type(error).__name__}: {error}.") from error
    if grade.tampered is None and "reward" not in grade.rewards:
        raise TaskError(f'{where} gave no channel "reward" (it gave: {", ".join(sorted(grade.rewards)) or "nothing"}).')
    if not all(math.isfinite(value) for value in grade.rewards.values()):
        raise TaskError(f"{where} gave a reward that is no finite number: {dict(grade.rewards)}.")
    return grade


def _judged(row: RolloutRow, result: ExecResult, grade: Grade, watch: Stopwatch, reason: StopReason) -> RolloutOutcome:
    verdict: Verdict = "valid" if grade.tampered is None else "tampered"
    rewards = dict(grade.rewards) if grade.tampered is None else dict.fromkeys(grade.rewards, 0.0)
    detail = grade.tampered or (None if reason is StopReason.FINISHED else _describe(result))
    return RolloutOutcome(row.id, reason, verdict, rewards, detail=detail, latencies=watch.stages)


def _infrastructure(row: RolloutRow, reason: StopReason, detail: str, watch: Stopwatch) -> RolloutOutcome:
    return RolloutOutcome(row.id, reason, "infrastructure_error", detail=detail, latencies=watch.stages)


def _describe(result: ExecResult) -> str:
    how = f"signal {result.signal}" if result.signal is not None else f"exit status {result.exit_code}"
    if result.timed_out:
        how = "killed at its wall-clock limit"
    tail = (result.stderr or result.stdout)[-_TAIL:].decode(errors="replace").strip()
    flood = " Output beyond the limit was dropped." if result.stdout_truncated or result.stderr_truncated else ""
    return f"It ended after {result.wall_s:.1f} s: {how}.{flood} Its last output:\n{tail or '(none)'}"
