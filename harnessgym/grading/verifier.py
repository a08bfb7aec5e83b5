"""Verifiers: graders that run things, each in a fresh sandbox that holds what the agent left and nothing
else.

A verdict has three values. A `Grade` is valid, or says how it was tampered with; an error (SandboxError,
TaskError) means that there is no verdict, because the machine or the task failed. What the agent's code does
to itself (it hangs, crashes, uses up its memory) is a failed test and therefore a valid grade.
"""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol, runtime_checkable

from harnessgym.sandbox import Sandbox
from harnessgym.task import Grade, Task

Opener = Callable[[], AbstractAsyncContextManager[Sandbox]]
"""Opens a sandbox; leaving the context removes it."""


@runtime_checkable
class Verifier(Protocol):
    """Judges what an agent left."""

    async def verify(self, task: Task, workspace: Path, place: Opener) -> Grade:
        """`workspace` holds what was exported: regular files, folders, and links that stay inside it.

        `place` opens a sandbox with the same files in its workspace, from the task's image, where nothing can
        be reached; in shared mode, it is the agent's. Raises SandboxError when a sandbox failed, TaskError
        when the task is at fault.
        """
        ...
