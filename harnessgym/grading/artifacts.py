"""What an agent left: its processes are killed, and the task's artifacts are exported to this machine.

Files that cannot be graded (too many, too large, a trap where an artifact should be) are tampering.
"""

import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath

import anyio.to_thread

from harnessgym.errors import TaskError
from harnessgym.grading.bytecode import remove_compiled
from harnessgym.grading.upload import LeftBehind, warn_left_behind
from harnessgym.sandbox import Capability, Sandbox, WorkspaceExport
from harnessgym.task import OUTSIDE, Hook, Task

_MAX_FILES = 100_000
"""A workspace with more files counts as an attempt to overload the grader."""
_GRADED = 0.875
"""Largest export as a fraction of `Limits.disk_mb`: the grading sandbox must hold the export and the
tests."""


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
    of_image: tuple[str, ...] = ()
    """What a grading sandbox takes from the image again: links that lead out, and compiled files."""
    failed_hooks: tuple[str, ...] = ()
    """A sentence for each of the task's hooks that failed."""


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


async def _run(hook: Hook, sandbox: Sandbox) -> str:
    """Runs a hook in the agent's sandbox. Returns how it failed, or an empty string."""
    user = "root" if hook.root and Capability.ROOT in sandbox.capabilities else None
    done = await sandbox.exec(hook.argv, user=user, timeout_s=hook.timeout_s)
    return "" if done.ok else f"{' '.join(hook.argv)[:200]}: {done.describe()}"


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
    of_image = (*export.left_out, *compiled) if task.home else ()
    if "." in task.artifacts:
        return CollectedArtifacts(root / "all", export, None, compiled, of_image)
    folder.mkdir()
    for artifact in (*task.artifacts, *([OUTSIDE] if task.collect else ())):
        _move(root / "all", folder, artifact)
    return CollectedArtifacts(folder, export, None, compiled, of_image)


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
