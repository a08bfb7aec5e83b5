"""From an agent's sandbox to a verdict: stop the agent, export what it left, and judge that elsewhere.

    kill every process, in one step → the node reads the workspace itself → the task's grader, which runs
    things only in fresh sandboxes of the pinned image, without network

Files that cannot be graded (too many, too large, a trap where an artifact should be) are tampering, with
reward 0. A sandbox or a grader that fails is an error and gives no reward at all.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio.to_thread

from harnessgym.errors import HarnessGymError, TaskError
from harnessgym.grading.artifacts import CollectedArtifacts, collected_artifacts
from harnessgym.grading.by_value.judge import ByValueJudge, is_judged_by_value
from harnessgym.grading.reward_range import KEY, LARGEST, is_reward, least_reward, reward_range
from harnessgym.grading.upload import LeftBehind, holding, warn_left_behind
from harnessgym.grading.verifier import Opener, Verifier
from harnessgym.registry import load
from harnessgym.sandbox import Sandbox
from harnessgym.task import Grade, Task

_JUDGE = ByValueJudge()
"""Keeps the gold solutions that this process judged by."""
_WARNING = "Graded in the sandbox that the agent used. What it left there can change what is measured."


async def judge(
    task: Task,
    sandbox: Sandbox,
    fresh: Opener,
    *,
    by_value: ByValueJudge | None = None,
    required: bool = False,
) -> Grade:
    """Kills every process in `sandbox` and grades the files there.

    `fresh` opens a sandbox of the task's image without network. Raises SandboxError when a sandbox failed,
    TaskError when the grader failed or returned something that is no reward.
    """
    async with collected_artifacts(task, sandbox) as evidence:
        shared = sandbox if task.verifier == "shared" else None
        return await verdict(task, evidence, shared, fresh, by_value=by_value, required=required)


async def verdict(
    task: Task,
    evidence: CollectedArtifacts,
    shared: Sandbox | None,
    fresh: Opener,
    left_behind: LeftBehind = warn_left_behind,
    *,
    by_value: ByValueJudge | None = None,
    required: bool = False,
) -> Grade:
    """Grades what was exported. `shared` is the agent's sandbox, if the task asks to be graded there.

    If the task asks to be judged by value, or `required` says so, more than the least reward is kept only if
    the workspace gives gold's values too (`harnessgym.grading.by_value`). `by_value` keeps gold solutions
    from one call to the next.
    """
    basis: dict[str, Any] = (
        {"mode": "separate"} if shared is None else {"mode": "shared", "warning": _WARNING}
    )
    if evidence.export.left_out:
        basis["left_out"] = list(evidence.export.left_out[:20])
    if evidence.failed_hooks:
        basis["failed_hooks"] = list(evidence.failed_hooks)
    if evidence.tampered is not None:
        return Grade({"reward": 0.0}, evidence.tampered, basis)
    open_sandbox = (
        holding(evidence.folder, fresh, evidence.of_image, left_behind) if shared is None else _reused(shared)
    )
    grade = await _run_grader(task, evidence.folder, open_sandbox)
    grade = replace(grade, rewards=checked_rewards(grade, task))
    if required or is_judged_by_value(task):
        grade = replace(grade, integrity="by_value")
        least = least_reward(task)
        if grade.tampered is None and grade.rewards["reward"] > least:
            judgement = await (by_value or _JUDGE).judge(task, open_sandbox, fresh)
            grade = judgement.applied(grade, least)
    return replace(grade, evidence={**grade.evidence, **basis, "integrity": grade.integrity})


def checked_rewards(grade: Grade, task: Task) -> dict[str, float]:
    """The rewards as floats, all 0 if tampered.

    Raises TaskError if one is no finite number, if "reward" is missing or outside of the range that the task
    declares, or if another channel is beyond `reward_range.LARGEST`.
    """
    where = _named(task)
    if not isinstance(grade.rewards, Mapping):
        raise TaskError(
            f'{where} gave {grade.rewards!r} as rewards. Give a mapping such as {{"reward": 1.0}}.'
        )
    if grade.tampered is not None:
        return {**dict.fromkeys(grade.rewards, 0.0), "reward": 0.0}
    if "reward" not in grade.rewards:
        channel_names = ", ".join(sorted(map(str, grade.rewards))) or "nothing"
        raise TaskError(f'{where} gave no channel "reward" (it gave: {channel_names}). Add it.')
    for channel, value in grade.rewards.items():
        if not is_reward(value):
            raise TaskError(
                f"{where} gave {value!r} on the channel {channel!r}. A reward is a finite number."
            )
    low, high = reward_range(task.metadata, f"Task {task.id!r}")
    if not low <= grade.rewards["reward"] <= high:
        raise TaskError(
            f"{where} gave the reward {grade.rewards['reward']!r}, which is outside of the range {low:g} to "
            f"{high:g}. If the grader may give it, declare it in the task's metadata: {KEY} = [low, high]."
        )
    for channel, value in grade.rewards.items():
        if abs(value) > LARGEST:
            raise TaskError(f"{where} gave {value!r} on the channel {channel!r}; the most is {LARGEST:g}.")
    return {channel: float(value) for channel, value in grade.rewards.items()}


async def _run_grader(task: Task, folder: Path, open_sandbox: Opener) -> Grade:
    grader: Any = await anyio.to_thread.run_sync(load, "grader", task.grader)
    where = _named(task)
    try:
        if isinstance(grader, Verifier):
            grade = await grader.verify(task, folder, open_sandbox)
        else:
            grade = await anyio.to_thread.run_sync(grader, task, folder)
    except HarnessGymError:
        raise
    except Exception as error:
        # The grader may be the user's own. Its bug must neither become a reward nor end the node.
        raise TaskError(f"{where} failed: {type(error).__name__}: {error}.") from error
    if not isinstance(grade, Grade):
        raise TaskError(f"{where} gave {grade!r}. A grader gives a `harnessgym.task.Grade`.")
    return grade


def _named(task: Task) -> str:
    return f"The grader {task.grader!r} of task {task.id!r}"


def _reused(sandbox: Sandbox) -> Opener:
    """Opens the agent's own sandbox again; leaving it kills the processes that the grader started."""

    @asynccontextmanager
    async def open_sandbox() -> AsyncIterator[Sandbox]:
        yield sandbox
        await sandbox.kill_all()

    return open_sandbox
