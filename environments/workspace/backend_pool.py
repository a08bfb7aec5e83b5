"""Resources that the episodes of one process share: an event loop in a thread, an open backend, snapshots.

The first environment that needs a pool opens it, and the last one closes it. A pool that nobody closed is
closed when the process ends. A forked process starts without pools: those it inherited belong to its parent.
"""

import asyncio
import contextlib
import json
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from environments.workspace.changes import WorkspaceChanges
from environments.workspace.episode import Episode
from environments.workspace.shell import ResidentShell, shell_in
from harnessgym.config import validate
from harnessgym.errors import HarnessGymError
from harnessgym.gym.portal import Portal
from harnessgym.provisioning import equipment_of
from harnessgym.registry import load
from harnessgym.sandbox import Capability, Sandbox, SandboxBackend, Snapshot, needs, require
from harnessgym.sandboxes.workspace import Workspace
from harnessgym.task import Setup, Task
from harnessgym.task_setup.workspace_setup import furnish, set_up

P = ParamSpec("P")
T = TypeVar("T")
_FEW = 8
"""Up to this many files, writing them is faster than unpacking a snapshot."""
_KEPT = 256
"""Most tasks with a kept snapshot, the first ones. Each is an archive on the disk."""
_READ = 1 << 20
_OUTSIDE = """\
command -v find >/dev/null || exit 3
while read -r _ place kind _; do
    [ "$kind" = tmpfs ] && [ "$place" != /workspace ] || continue
    find "$place" -xdev -mindepth 1 -uid "$(id -u)" -print -quit 2>/dev/null
done </proc/mounts
"""
_LOOK_S = 30.0


@dataclass(frozen=True, slots=True)
class InitialWorkspace:
    """A task's initial workspace, kept so that it need not be made again."""

    sandbox: Sandbox
    """The closed sandbox in which it was made. Others are forked from it."""
    snapshot: Snapshot
    texts: Path | None
    """Folder with the initial files, for diffs; None if they are only the task's own texts."""
    set_up: bool
    """Whether the snapshot includes the set-up. If not, the set-up runs each time."""


class BackendPool:
    """A pool of shared resources. Made by `acquire`; see the module."""

    def __init__(self, name: str, settings: Mapping[str, Any]) -> None:
        """Opens the backend.

        Raises ConfigError for an unknown backend or setting, SandboxError if it cannot be used here.
        """
        self.users = 0
        self._pid = os.getpid()
        self._initial: dict[str, InitialWorkspace] = {}
        self._number = 0
        self._closing: set[asyncio.Task[None]] = set()
        self._stack = ExitStack()
        factory = load("sandbox", name)
        backend: SandboxBackend = factory(validate(factory.settings, dict(settings), f"sandbox {name!r}"))
        self._portal = self._stack.enter_context(Portal())
        try:
            self.backend = self._stack.enter_context(self._portal.enter(_opened(backend)))
        except BaseException:
            self._stack.close()
            raise

    @property
    def ours(self) -> bool:
        """Whether this process opened it."""
        return self._pid == os.getpid()

    def call(self, function: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs a coroutine function in the pool's event loop and returns its result."""
        return self._portal.call(function, *args, **kwargs)

    def close(self) -> None:
        """Closes everything. Does nothing in a process that did not open the pool."""
        if self.ours:
            # The portal raises if its thread has ended already.
            with contextlib.suppress(RuntimeError):
                self._portal.call(self._settle)
            self._stack.close()

    async def begin(self, key: str, task: Task) -> Episode:
        """Begins an episode. `key` identifies the task in this process.

        Raises CapabilityError for a task that needs what the backend lacks, and HarnessGymError or OSError
        when its sandbox cannot be made.
        """
        require(self.backend.capabilities, needs(task))
        # The stack closes the sandbox if anything fails. Once all is well, `pop_all` hands the closing over
        # to the episode.
        async with AsyncExitStack() as stack:
            known = self._initial.get(key)
            if known is not None:
                sandbox = await known.sandbox.fork(known.snapshot)
                texts = known.texts
                stack.push_async_callback(sandbox.aclose)
                if not known.set_up:
                    await set_up(task.setup, sandbox, f"task {task.id!r}")
            else:
                sandbox = await stack.enter_async_context(self.backend.open(task.limits, equipment_of(task)))
                texts = await self._made(key, task, sandbox)
            changes = await asyncio.to_thread(
                WorkspaceChanges, Workspace(sandbox.workspace, None, _READ), task.files, texts
            )
            shell = shell_in(sandbox, task.env)
            if isinstance(shell, ResidentShell):
                stack.push_async_callback(shell.aclose)
                await shell.start()
            close = stack.pop_all().aclose
        return Episode(
            task,
            sandbox,
            shell,
            changes,
            lambda: self.backend.open(task.limits, equipment_of(task, grades=True)),
            close,
        )

    async def end(self, episode: Episode) -> None:
        """Ends an episode in the background. At most about one for each environment is ending at a time."""
        # Without this limit, resets that are faster than closing would pile up sandboxes.
        if len(self._closing) > max(1, self.users):
            await asyncio.wait(self._closing, return_when=asyncio.FIRST_COMPLETED)
        closing = asyncio.create_task(_ended(episode))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def _made(self, key: str, task: Task, sandbox: Sandbox) -> Path | None:
        """Sets up a task's sandbox for the first time and keeps a snapshot if possible.

        Returns the folder with its initial files, as `_export_initial_files` does.
        """
        keep = (
            Capability.SNAPSHOT in self.backend.capabilities
            and len(self._initial) < _KEPT
            and (bool(task.setup.run) or bool(task.home) or len(task.files) > _FEW)
        )
        if not keep:
            await furnish(task, sandbox)
            return await self._export_initial_files(task, sandbox)
        # A snapshot holds the workspace only. In an image, the set-up may write elsewhere too; then the
        # snapshot from before the set-up is kept, and the set-up runs again for each episode.
        await furnish(replace(task, setup=Setup()), sandbox)
        snapshot = (
            await sandbox.snapshot()
            if Capability.IMAGE in self.backend.capabilities and task.setup.run
            else None
        )
        await set_up(task.setup, sandbox, f"task {task.id!r}")
        whole = snapshot is None or await _left_nothing_outside(sandbox)
        if snapshot is None or whole:
            snapshot = await sandbox.snapshot()
        texts = await self._export_initial_files(task, sandbox)
        self._initial[key] = InitialWorkspace(sandbox, snapshot, texts, whole)
        return texts

    async def _export_initial_files(self, task: Task, sandbox: Sandbox) -> Path | None:
        """Exports the initial files to a folder and returns it; None if the task has all of them as texts."""
        if not task.setup.run and not task.home:
            return None
        self._number += 1
        folder = self.backend.root / "beginnings" / str(self._number)
        folder.parent.mkdir(mode=0o700, exist_ok=True)
        await sandbox.export(folder, max_bytes=task.limits.disk_mb << 20, max_files=100_000)
        return folder

    async def _settle(self) -> None:
        await asyncio.gather(*self._closing)


async def _left_nothing_outside(sandbox: Sandbox) -> bool:
    """Whether a set-up in a container wrote only to the workspace.

    Files in the container's other writable folders outlast the set-up too, and a snapshot does not have them.
    """
    exec_result = await sandbox.exec(["sh", "-c", _OUTSIDE], timeout_s=_LOOK_S)
    return exec_result.ok and not exec_result.stdout


async def _ended(episode: Episode) -> None:
    """Closes an episode. The reaper removes what cannot be removed here."""
    with contextlib.suppress(HarnessGymError, OSError):
        await episode.aclose()


@contextlib.asynccontextmanager
async def _opened(backend: SandboxBackend) -> AsyncIterator[SandboxBackend]:
    async with backend:
        yield backend


_pools: dict[str, BackendPool] = {}
_lock = threading.Lock()
_closer: threading.Thread | None = None
"""Thread that closes forgotten pools. It starts with the first pool."""


def acquire(name: str, settings: Mapping[str, Any]) -> BackendPool:
    """The pool for a backend and its settings, opened if needed. Call `release` once for each `acquire`."""
    global _closer  # noqa: PLW0603  # one for this process
    key = json.dumps([name, dict(settings)], sort_keys=True, default=str)
    with _lock:
        if _closer is None:
            _closer = threading.Thread(target=_close_forgotten, name="harnessgym-closer", daemon=False)
            _closer.start()
        pool = _pools.get(key)
        if pool is None:
            pool = _pools[key] = BackendPool(name, settings)
        pool.users += 1
        return pool


def release(pool: BackendPool) -> None:
    """Gives a pool back; the last user closes it. A pool of another process is left alone."""
    if not pool.ours:
        return
    with _lock:
        pool.users -= 1
        if pool.users > 0:
            return
        for key in [key for key, each in _pools.items() if each is pool]:
            del _pools[key]
        pool.close()


def _forget() -> None:
    """Clears the inherited state in a forked process."""
    # The lock must be a new one: a thread of the parent that holds it does not exist here and never
    # releases it.
    global _lock, _closer
    _lock, _closer = threading.Lock(), None
    _pools.clear()


def _close_forgotten() -> None:
    """Closes all pools after every other non-daemon thread has ended. The interpreter waits for this one too.

    `atexit` would be too late: no thread can be started by then, and closing needs some.
    """
    threading.main_thread().join()
    for thread in threading.enumerate():
        if not thread.daemon and thread is not threading.current_thread():
            thread.join()
    for each in list(_pools.values()):
        each.close()
    _pools.clear()


os.register_at_fork(after_in_child=_forget)
