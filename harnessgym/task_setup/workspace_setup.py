"""Prepares a sandbox for an agent: the image's files at the task's home, the task's files, and its setup."""

import time

from harnessgym.errors import TaskError
from harnessgym.outcome.failure import Cause, RolloutFailed
from harnessgym.sandbox import Sandbox
from harnessgym.sandboxes.containers import SET_ASIDE
from harnessgym.sandboxes.egress import Egress
from harnessgym.task import Setup, Solution, Task

_SETUP_TAIL = 2_000


async def set_up(setup: Setup, sandbox: Sandbox, where: str) -> None:
    """Runs setup commands in order. `where` names their task, for messages.

    Raises `RolloutFailed` if one fails or their time is over.
    """
    egress = Egress(setup.hosts) if setup.hosts else None
    left = setup.timeout_s
    for command in setup.run:
        result = await sandbox.exec(command, timeout_s=max(left, 0.001), outside=egress)
        left -= result.wall_s
        if result.ok:
            continue
        ending = result.ending
        # Name the limit of the whole setup, not what was left of it for this command.
        if result.timed_out:
            ending = f"it did not end within the {setup.timeout_s:.0f} s that setup may take"
        raise RolloutFailed(
            Cause.SETUP_FAILED,
            f"The setup command `{' '.join(command)}` of {where} failed: {ending}. Its last output:\n"
            f"{result.last_output(_SETUP_TAIL)}",
        )


_TAIL = 500
_HOME_S = 600.0
_LAY_HOME = """\
[ -d "$1" ] || exit 0
owner=$(stat -c %u:%g .)
cp -a "$1/." .
chown -hR "$owner" .
chmod u+rwx .
"""


async def furnish(task: Task, sandbox: Sandbox) -> float | None:
    """Writes the task's initial files and runs its setup. Returns the setup's seconds, or None without setup.

    Raises SandboxError, TaskError for a home that does not fit into the workspace, and RolloutFailed for a
    setup that fails.
    """
    # The task's files replace those of the image, and the setup sees both.
    if task.home:
        await _lay_home(task, sandbox)
    for path, text in task.files.items():
        await sandbox.write(path, text.encode())
    if not task.setup.run:
        return None
    began = time.perf_counter()
    await set_up(task.setup, sandbox, f"task {task.id!r}")
    return time.perf_counter() - began


async def _lay_home(task: Task, sandbox: Sandbox) -> None:
    """Copies the image's home into the workspace. Only root can read it; the copy belongs to the agent."""
    done = await sandbox.exec(["sh", "-ec", _LAY_HOME, "home", SET_ASIDE], user="root", timeout_s=_HOME_S)
    if not done.ok:
        raise TaskError(
            f"What the image of task {task.id!r} has at {task.home} could not be laid into the workspace "
            f"(limits: {task.limits.disk_mb} MB of disk, {task.limits.memory_mb} MB of memory with it): "
            f"{done.describe(_TAIL)}."
        )


_LEAST_S = 120.0
"""Shortest time limit for a command of a solution, in seconds."""


async def solve(task: Task, sandbox: Sandbox) -> None:
    """Applies the task's solution in a furnished sandbox. Raises TaskError if one of its commands fails."""
    solution = task.solution or Solution()
    for path, text in solution.files.items():
        await sandbox.write(path, text.encode())
    for command in solution.run:
        done = await sandbox.exec(command, timeout_s=max(_LEAST_S, task.limits.wall_s))
        if not done.ok:
            raise TaskError(f"The gold command {' '.join(command)[:200]!r} failed: {done.describe(_TAIL)}.")
