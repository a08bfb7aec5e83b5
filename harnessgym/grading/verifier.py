"""Verifiers: graders that run commands, each in a fresh sandbox that holds only what the agent left.

A verdict has three values. A `Grade` is valid, or says how it was tampered with. An error (SandboxError,
TaskError) means that there is no verdict, because the machine or the task failed. If the agent's code hangs,
crashes or uses up its memory, that is a failed test and therefore a valid grade.
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
    """Grades what an agent left."""

    async def verify(self, task: Task, workspace: Path, open_sandbox: Opener) -> Grade:
        """Grades `workspace`, the export: regular files, folders, and links that stay inside it.

        `open_sandbox` opens a sandbox of the task's image with the same files in its workspace and without
        network. In shared mode it is the agent's sandbox. Raises SandboxError when a sandbox failed,
        TaskError when the task is at fault.
        """
        ...
