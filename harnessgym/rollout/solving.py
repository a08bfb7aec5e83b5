"""A task's solution in place of an agent's work."""

from harnessgym.errors import TaskError
from harnessgym.sandbox import Sandbox
from harnessgym.task import Solution, Task

_LEAST_S = 120.0
"""Seconds that each command of a solution has at least."""


async def solve(task: Task, sandbox: Sandbox) -> None:
    """Does what the solution says in a furnished sandbox. Raises TaskError when a command of it fails."""
    solution = task.solution or Solution()
    for path, text in solution.files.items():
        await sandbox.write(path, text.encode())
    for command in solution.run:
        done = await sandbox.exec(command, timeout_s=max(_LEAST_S, task.limits.wall_s))
        if not done.ok:
            said = done.stderr[-500:].decode(errors="replace").strip() or f"exit code {done.exit_code}"
            raise TaskError(f"The gold command {' '.join(command)[:200]!r} failed: {said}.")
