"""What an agent changed of a repository, as a patch, and patches applied to it: git in a grading sandbox.

The agent's files come into the sandbox as data. They are read by git with a repository of our own, whatever
their `.git`, their attributes or their settings say; then they are removed, the task's first files are laid
out again, and the difference of the two is the patch, byte for byte: binary files, line ends and modes too.
What git is told to ignore is no part of it, unless the task's repository tracks it.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import PurePosixPath

from harnessgym.errors import SandboxError, TaskError
from harnessgym.outcome.failure import RolloutFailed
from harnessgym.sandbox import Capability, ExecResult, Sandbox
from harnessgym.sandboxes.containers import SET_ASIDE
from harnessgym.task import Task
from harnessgym.task_setup.workspace_setup import furnish

ATTEMPTS = (
    "git apply --verbose",
    "git apply --verbose --3way",
    "git apply --verbose --reject",
    "patch --batch --forward --fuzz=5 -p1 -i",
)
"""How SWE-bench applies a patch: each only if the one before could not."""
_STEP_S = 900.0
_MOST = 64 << 20
"""Bytes of a patch."""
_NOT_APPLIED = 3
_EMPTY = "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"
"""What git calls the content of an empty file."""
_TAIL = 800


@dataclass(frozen=True, slots=True)
class Change:
    """What an agent changed."""

    patch: bytes
    problem: str = ""
    """Why it cannot be said, if it cannot."""


async def handed_in(task: Task, sandbox: Sandbox) -> Change:
    """The change from what the task begins with to what is in the workspace, which is then as the task
    begins.

    Raises SandboxError when the sandbox failed, TaskError when the task's image or its set-up is at fault.
    """
    user = "root" if task.home and Capability.ROOT in sandbox.capabilities else None
    own = f".harnessgym-{secrets.token_hex(8)}"
    taken = await _run(sandbox, "git_take.sh", [own, SET_ASIDE if user else ""], stdin=_laid(task), user=user)
    if taken.timed_out:
        return Change(b"", f"what was left could not be read within {_STEP_S:.0f} s")
    _check(task, taken, "What was left could not be read")
    await begin(task, sandbox)
    compared = await _run(sandbox, "git_compare.sh", [own], user=user)
    if compared.timed_out or compared.stdout_truncated:
        return Change(b"", f"what was changed is more than a patch may be ({_MOST >> 20} MiB)")
    _check(task, compared, "What was changed could not be told")
    return Change(compared.stdout)


def _laid(task: Task) -> bytes:
    """The files that the task lays itself, as `git update-index -z --index-info` reads them; their
    contents are not asked.
    """
    paths = (PurePosixPath(path) for path in task.files)
    kept = (path for path in paths if not {".git", ".."} & set(map(str.lower, path.parts)))
    return "".join(f"100644 {_EMPTY} 0\t{path}\0" for path in kept).encode()


async def begin(task: Task, sandbox: Sandbox) -> None:
    """Lays out what the task begins with. Raises TaskError when its set-up fails."""
    try:
        await furnish(task, sandbox)
    except RolloutFailed as error:
        raise TaskError(f"Task {task.id!r} could not be laid out for grading: {error}") from error


async def apply(task: Task, sandbox: Sandbox, patch: bytes, attempts: Sequence[str] = ATTEMPTS) -> str | None:
    """Applies a patch to the workspace; the command that could, or None if none could."""
    done = await _run(sandbox, "git_apply.sh", list(attempts), stdin=patch)
    if done.exit_code == _NOT_APPLIED or done.timed_out:
        return None
    _check(task, done, "A patch could not be applied")
    return done.stdout.decode(errors="replace").strip().splitlines()[-1]


async def restore(task: Task, sandbox: Sandbox, paths: Sequence[str]) -> None:
    """Makes paths of the workspace what the task begins with."""
    inside = [
        path
        for path in paths
        if path and "\n" not in path and not path.startswith("/") and ".." not in path.split("/")
    ]
    if inside:
        done = await _run(sandbox, "git_restore.sh", [], stdin=("\n".join(inside) + "\n").encode())
        _check(task, done, "Test files could not be restored")


async def _run(
    sandbox: Sandbox,
    script: str,
    words: Sequence[str],
    *,
    stdin: bytes | None = None,
    user: str | None = None,
) -> ExecResult:
    text = (files("harnessgym.grading.runners") / script).read_text(encoding="utf-8")
    command = ["sh", "-c", text, script, *words]
    return await sandbox.exec(command, stdin=stdin, user=user, timeout_s=_STEP_S, max_output=_MOST)


def _check(task: Task, result: ExecResult, what: str) -> None:
    if result.ok:
        return
    problem = f"{what} for task {task.id!r}: {result.describe(_TAIL)}."
    if result.exit_code == 127 or b"git: not found" in result.stderr:
        raise TaskError(f"{problem} The image needs git and the usual shell tools.")
    raise SandboxError(problem)
