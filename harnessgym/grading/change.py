"""Reads an agent's change to a repository as a patch, and applies patches: git in a grading sandbox.

The agent's files enter the sandbox as data. Git reads them into a repository of our own and ignores their
`.git`, attributes and settings. They are then removed, the task's initial files are written again, and the
difference between the two is the patch. It is exact to the byte: binary files, line ends and modes included.
Files that git ignores are not part of it, unless the task's repository tracks them.
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
"""How SWE-bench applies a patch: each command runs only if the one before it failed."""
_STEP_S = 900.0
_BUSY = 0.2
"""Fraction of the CPU time of a sandbox that a command at work uses at least."""
_MOST = 64 << 20
"""Largest patch, in bytes."""
_NOT_APPLIED = 3
_EMPTY = "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"
"""Git's object id of an empty file."""
_TAIL = 800


@dataclass(frozen=True, slots=True)
class Change:
    """The change that an agent made."""

    patch: bytes
    problem: str = ""
    """Why there is no patch, if there is none."""


async def handed_in(task: Task, sandbox: Sandbox) -> Change:
    """The agent's change to the task's initial files. Resets the workspace to the initial files.

    Raises SandboxError when the sandbox failed, TaskError when the task's image or its set-up is at fault.
    """
    user = "root" if task.home and Capability.ROOT in sandbox.capabilities else None
    # The folder's name is random: the agent's files must not be able to occupy it.
    own = f".harnessgym-{secrets.token_hex(8)}"
    # The order matters: git reads the agent's files and removes them before the task's set-up runs, so
    # nothing of the agent's can run or be picked up while the initial files are written.
    take_result = await _run(
        sandbox, "git_take.sh", [own, SET_ASIDE if user else ""], stdin=_index_entries(task), user=user
    )
    if take_result.timed_out and _caused(task, take_result):
        return Change(b"", f"the workspace could not be read within {_STEP_S:.0f} s")
    _check(task, take_result, "The workspace could not be read")
    await begin(task, sandbox)
    compared = await _run(sandbox, "git_compare.sh", [own], user=user)
    if compared.stdout_truncated or (compared.timed_out and _caused(task, compared)):
        return Change(b"", f"the change is larger than {_MOST >> 20} MiB, or computing it took too long")
    _check(task, compared, "The change could not be computed")
    return Change(compared.stdout)


def _index_entries(task: Task) -> bytes:
    """Index entries for the files that the task writes, in the format of `git update-index -z --index-info`.

    Only the paths matter: every entry has the empty file as its content.
    """
    # `.git` and `..` are no paths that git indexes, and one bad entry would end the whole list.
    paths = (PurePosixPath(path) for path in task.files)
    kept = (path for path in paths if not {".git", ".."} & set(map(str.lower, path.parts)))
    return "".join(f"100644 {_EMPTY} 0\t{path}\0" for path in kept).encode()


async def begin(task: Task, sandbox: Sandbox) -> None:
    """Writes the task's initial files and runs its set-up. Raises TaskError when the set-up fails."""
    try:
        await furnish(task, sandbox)
    except RolloutFailed as error:
        raise TaskError(f"Task {task.id!r} could not be set up for grading: {error}") from error


async def apply(task: Task, sandbox: Sandbox, patch: bytes, attempts: Sequence[str] = ATTEMPTS) -> str | None:
    """Applies a patch to the workspace. Returns the command that succeeded, or None if none did.

    Raises SandboxError for a sandbox that is too slow.
    """
    done = await _run(sandbox, "git_apply.sh", list(attempts), stdin=patch)
    if done.exit_code == _NOT_APPLIED or (done.timed_out and _caused(task, done)):
        return None
    _check(task, done, "A patch could not be applied")
    return done.stdout.decode(errors="replace").strip().splitlines()[-1]


async def remove(task: Task, sandbox: Sandbox, paths: Sequence[str]) -> None:
    """Removes files of the workspace, where they are there."""
    named = [path for path in paths if not path.startswith("/") and ".." not in path.split("/")]
    if named:
        stdin = b"".join(path.encode() + b"\0" for path in named)
        done = await sandbox.exec(["xargs", "-0", "rm", "-f", "--"], stdin=stdin, timeout_s=_STEP_S)
        _check(task, done, "Compiled files of a patch could not be removed")


async def restore(task: Task, sandbox: Sandbox, paths: Sequence[str]) -> None:
    """Restores paths of the workspace to their initial state."""
    # The script reads one path a line from stdin and removes what git does not know. So a path with a
    # newline, or one that leads out of the workspace, must never reach it.
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


def _caused(task: Task, result: ExecResult) -> bool:
    """Whether what a command was given made it time out: then it computed for most of the time.

    Otherwise it waited, for a machine or a disk that is too busy.
    """
    most = result.wall_s * min(1.0, task.limits.cpus)
    return result.cpu_s is not None and result.cpu_s >= _BUSY * most


def _check(task: Task, result: ExecResult, what: str) -> None:
    if result.ok:
        return
    problem = f"{what} for task {task.id!r}: {result.describe(_TAIL)}."
    if result.exit_code == 127 or b"git: not found" in result.stderr:
        raise TaskError(f"{problem} The image needs git and the usual shell tools.")
    raise SandboxError(problem)
