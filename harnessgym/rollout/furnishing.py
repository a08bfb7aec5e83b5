"""A sandbox as a task's agent finds it: what the image has at the task's home, the task's files, its setup."""

import time

from harnessgym.errors import TaskError
from harnessgym.rollout.setting_up import set_up
from harnessgym.sandbox import Sandbox
from harnessgym.sandboxes.containers import SET_ASIDE
from harnessgym.task import Task

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
    """Lays out what the task begins with and runs its setup. Returns the seconds that the setup took, None if there is none.

    Raises SandboxError, TaskError for a home that does not fit into the workspace, and RolloutFailed for a setup that fails.
    """
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
    """Root alone can read what the image had there; the copy belongs to the agent's user."""
    done = await sandbox.exec(["sh", "-ec", _LAY_HOME, "home", SET_ASIDE], user="root", timeout_s=_HOME_S)
    if not done.ok:
        said = done.stderr[-_TAIL:].decode(errors="replace").strip()
        raise TaskError(
            f"What the image of task {task.id!r} has at {task.home} could not be laid into the workspace "
            f"(limits: {task.limits.disk_mb} MB of disk, {task.limits.memory_mb} MB of memory with it): {said or 'no word'}."
        )
