"""From an agent's sandbox to a verdict: stop the agent, export what it left, and judge that elsewhere.

    kill every process, in one step → the node reads the workspace itself → the task's grader, which runs
    things only in fresh sandboxes of the pinned image, without network

Files that cannot be graded (too many, too large, a trap where an artifact should be) are tampering, with
reward 0. A sandbox or a grader that fails is an error and gives no reward at all.
"""

import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import anyio.to_thread

from harnessgym.errors import HarnessGymError, TaskError
from harnessgym.grading.by_value.judge import ByValueJudge, is_judged_by_value
from harnessgym.grading.bytecode import remove_compiled
from harnessgym.grading.reward_range import KEY, LARGEST, is_reward, reward_range
from harnessgym.grading.upload import LeftBehind, holding, warn_left_behind
from harnessgym.grading.verifier import Opener, Verifier
from harnessgym.registry import load
from harnessgym.sandbox import Capability, Sandbox, WorkspaceExport
from harnessgym.task import OUTSIDE, Grade, Hook, Task

_MAX_FILES = 100_000
"""A workspace with more files counts as an attempt to overload the grader."""
_GRADED = 0.875
"""Largest export as a fraction of `Limits.disk_mb`: the grading sandbox must hold the export and the
tests."""
_JUDGE = ByValueJudge()
"""Keeps the gold solutions that this process judged by."""
_WARNING = "Graded in the sandbox that the agent used. What it left there can change what is measured."


@dataclass(frozen=True, slots=True)
class CollectedArtifacts:
    """What was exported from the agent's sandbox."""

    folder: Path
    """Folder with the artifacts only."""
    export: WorkspaceExport
    tampered: str | None
    """Why the export cannot be graded, if it cannot."""
    compiled: tuple[str, ...] = ()
    """Compiled Python files that are not graded (`harnessgym.grading.bytecode`)."""
    failed_hooks: tuple[str, ...] = ()
    """A sentence for each of the task's hooks that failed."""


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


@asynccontextmanager
async def collected_artifacts(
    task: Task, sandbox: Sandbox, within: Path | None = None, left_behind: LeftBehind = warn_left_behind
) -> AsyncIterator[CollectedArtifacts]:
    """The task's artifacts, in a folder that is removed at the end.

    Once they are exported, only shared grading still needs the sandbox. The folder is made in `within`, which
    the caller has removed if this process is killed; the default is the folder for temporary files. If the
    folder cannot be removed, that is no error, because the grade exists by then: `left_behind` is called with
    a sentence.
    """
    # Kill first: a process that still runs could change files while they are read, so that what is graded
    # never existed at one time. Hooks run after that, where no process of the agent's can meddle with them.
    await sandbox.kill_all()
    failed = tuple([problem for hook in task.hooks if (problem := await _run(hook, sandbox))])
    root = Path(
        await anyio.to_thread.run_sync(partial(tempfile.mkdtemp, prefix="harnessgym-graded-", dir=within))
    )
    try:
        most = int(task.limits.disk_mb * _GRADED * (1 << 20))
        export = await sandbox.export(
            root / "all", max_bytes=most, max_files=_MAX_FILES, collect=task.collect
        )
        yield replace(await anyio.to_thread.run_sync(_evidence, task, root, export), failed_hooks=failed)
    finally:
        # An error raised here would replace the grade that the caller has already computed.
        try:
            await anyio.to_thread.run_sync(_remove, root)
        except OSError as error:
            left_behind(f"What was graded could not be removed from {root}: {error}.")


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

    If the task asks to be judged by value, or `required` says so, a reward is kept only if the workspace
    gives gold's values too (`harnessgym.grading.by_value`). `by_value` keeps gold solutions from one call to
    the next.
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
    of_image = (*evidence.export.left_out, *evidence.compiled) if task.home else ()
    open_sandbox = (
        holding(evidence.folder, fresh, of_image, left_behind) if shared is None else _reused(shared)
    )
    grade = await _run_grader(task, evidence.folder, open_sandbox)
    grade = replace(grade, rewards=checked_rewards(grade, task))
    if required or is_judged_by_value(task):
        grade = replace(grade, integrity="by_value")
        if grade.tampered is None and grade.rewards["reward"] > 0:
            judgement = await (by_value or _JUDGE).judge(task, open_sandbox, fresh)
            grade = judgement.applied(grade)
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


async def _run(hook: Hook, sandbox: Sandbox) -> str:
    """Runs a hook in the agent's sandbox. Returns how it failed, or an empty string."""
    user = "root" if hook.root and Capability.ROOT in sandbox.capabilities else None
    done = await sandbox.exec(hook.argv, user=user, timeout_s=hook.timeout_s)
    return "" if done.ok else f"{' '.join(hook.argv)[:200]}: {done.describe()}"


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


def _evidence(task: Task, root: Path, export: WorkspaceExport) -> CollectedArtifacts:
    folder = root / "artifacts"
    # The overflow comes first: an export that stopped at the limit says nothing about the files after it.
    trap = _trapped(task, export)
    if export.overflow:
        problem = f"The workspace passes what is graded: {export.overflow.rstrip('.')}."
        return CollectedArtifacts(folder, export, problem)
    if trap is not None:
        return CollectedArtifacts(
            folder, export, f"The artifact {trap!r} is no data: a device, a pipe, or a link that leads out."
        )
    compiled = remove_compiled(root / "all", task.artifacts)
    if "." in task.artifacts:
        return CollectedArtifacts(root / "all", export, None, compiled)
    folder.mkdir()
    for artifact in (*task.artifacts, *([OUTSIDE] if task.collect else ())):
        _move(root / "all", folder, artifact)
    return CollectedArtifacts(folder, export, None, compiled)


def _trapped(task: Task, export: WorkspaceExport) -> str | None:
    """The first artifact that the export left out, itself or with a folder above it."""
    left_out = {PurePosixPath(path) for path in export.left_out}
    for artifact in task.artifacts:
        path = PurePosixPath(artifact)
        if path.parts and not left_out.isdisjoint((path, *path.parents)):
            return artifact
    return None


def _move(source: Path, target: Path, artifact: str) -> None:
    """Moves one artifact. Skips it if a parent is a link, if it is missing, or if the target exists."""
    path = PurePosixPath(artifact)
    if path.is_absolute() or ".." in path.parts:
        raise TaskError(f"Artifact {artifact!r} must be a relative path inside the workspace.")
    source_path = source / path
    there = target / path
    # A rename through a linked parent could move a file from outside the export.
    linked = any((source / parent).is_symlink() for parent in path.parents)
    if linked or not os.path.lexists(source_path) or os.path.lexists(there):
        return
    there.parent.mkdir(parents=True, exist_ok=True)
    os.rename(source_path, there)


def _remove(root: Path) -> None:
    """Removes everything, including folders without permission to enter."""
    try:
        shutil.rmtree(root)
    except PermissionError:
        # The export keeps the agent's modes, and `rmtree` cannot list a folder of mode 000.
        for folder, _, _ in os.walk(root):
            os.chmod(folder, 0o700)
        shutil.rmtree(root)
