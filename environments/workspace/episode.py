"""One task in one sandbox: executes actions and grades the result.

Everything here is asynchronous. `BackendPool` calls it for the environment.
"""

import asyncio
import stat
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from environments.workspace.action import Action, ActionStatus, EditAction, RunAction, Write
from environments.workspace.changes import WorkspaceChanges
from environments.workspace.shell import Shell
from harnessgym.errors import SandboxError
from harnessgym.grading.grade import judge
from harnessgym.grading.verifier import Opener
from harnessgym.sandbox import Sandbox
from harnessgym.task import Grade, Task

WORKSPACE = "/workspace"


@dataclass(frozen=True, slots=True)
class ActionOutcome:
    """The result of an action."""

    status: ActionStatus
    output: str
    diff: str
    missing: int = 0
    """Bytes of earlier output that were dropped."""
    code: int = 0
    """Exit code of a command, or the negative signal that ended it."""


class Episode:
    """An episode in a sandbox that has been set up. `close` ends the sandbox."""

    def __init__(
        self,
        task: Task,
        sandbox: Sandbox,
        shell: Shell,
        changes: WorkspaceChanges,
        fresh: Opener,
        close: Callable[[], Awaitable[None]],
    ) -> None:
        self.task = task
        self._sandbox = sandbox
        self._shell = shell
        self._changes = changes
        self._fresh = fresh
        self._close = close
        self._roots = tuple(
            PurePosixPath(path) for path in (WORKSPACE, task.home, str(sandbox.workspace)) if path
        )

    async def act(self, action: Action, timeout_s: float) -> ActionOutcome:
        """Executes an action. Raises HarnessGymError or OSError if the sandbox, not the action, failed."""
        status = ActionStatus.DONE
        output = ""
        missing = 0
        code = 0
        if isinstance(action, RunAction):
            command_output = await self._shell.run(action.command, timeout_s)
            output = command_output.output
            missing = command_output.missing
            code = command_output.code
            status = (
                ActionStatus.TIMED_OUT
                if command_output.timed_out
                else ActionStatus.DONE
                if code == 0
                else ActionStatus.FAILED
            )
        elif isinstance(action, Write | EditAction):
            problem = await self._put(action)
            status, output = (
                (ActionStatus.DONE, f"Wrote {action.path}.")
                if problem is None
                else (ActionStatus.FAILED, problem)
            )
        return ActionOutcome(status, output, await self.diff(), missing, code)

    async def diff(self) -> str:
        """The diff of the workspace against its initial state."""
        return await asyncio.to_thread(self._changes.diff)

    async def judged(self) -> Grade:
        """Grades the workspace; see `harnessgym.grading.grade.judge`."""
        await self._shell.aclose()
        return await judge(self.task, self._sandbox, self._fresh)

    async def aclose(self) -> None:
        """Ends the sandbox."""
        await self._shell.aclose()
        await self._close()

    async def _put(self, action: Write | EditAction) -> str | None:
        """Writes a file and keeps its executable bit. Returns why it failed, or None."""
        # `upload` and `download` follow no links, so an edit cannot reach a file outside of the workspace.
        path = self._inside(action.path)
        if path is None:
            return f"{action.path} is not the path of a file in the workspace."
        with tempfile.TemporaryDirectory(prefix="harnessgym-edit-") as temporary:
            copy = Path(temporary) / "file"
            try:
                await self._fetch(path, copy, needed=isinstance(action, EditAction))
                _write(copy, action.text if isinstance(action, Write) else _replaced(copy, action))
                await self._sandbox.upload(copy, path)
            except (SandboxError, _Refused) as error:
                return str(error)
        return None

    async def _fetch(self, path: str, copy: Path, *, needed: bool) -> None:
        """Downloads the current file, if it exists. Raises `_Refused` if it is `needed` and missing."""
        try:
            await self._sandbox.download(path, copy)
        except FileNotFoundError:
            if needed:
                raise _Refused(f"There is no file {path}.") from None
        except SandboxError:
            # It is a link or a device. A new file replaces it; there is nothing to edit.
            if needed:
                raise
        if copy.is_dir():
            raise _Refused(f"{path} is a folder.")

    def _inside(self, path: str) -> str | None:
        """The path relative to the workspace; None if it leads out of it or is the workspace itself."""
        pure_path = PurePosixPath(path)
        if pure_path.is_absolute():
            root = next((root for root in self._roots if pure_path.is_relative_to(root)), None)
            if root is None:
                return None
            pure_path = pure_path.relative_to(root)
        return None if ".." in pure_path.parts or not pure_path.parts else str(pure_path)


class _Refused(Exception):
    """An action that cannot be executed, and why."""


def _replaced(copy: Path, action: EditAction) -> str:
    try:
        text = copy.read_bytes().decode()
    except UnicodeDecodeError:
        raise _Refused(f"{action.path} is not UTF-8 text.") from None
    count = text.count(action.old)
    if count != 1:
        raise _Refused(f"`old` occurs {count} times in {action.path}; it must occur exactly once.")
    return text.replace(action.old, action.new)


def _write(path: Path, text: str) -> None:
    """Writes a local file and keeps its mode."""
    mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else 0o644
    path.write_bytes(text.encode())
    path.chmod(mode)
