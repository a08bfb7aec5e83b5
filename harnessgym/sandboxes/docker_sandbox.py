"""A sandbox in a container: runs commands through its agent, accesses files through a descriptor."""

import asyncio
import contextlib
import os
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Unpack

from harnessgym.errors import SandboxError
from harnessgym.sandbox import (
    Equipment,
    ExecOptions,
    ExecResult,
    OnOutput,
    Outside,
    Serving,
    Snapshot,
    Stats,
    WorkspaceExport,
)
from harnessgym.sandboxes.agent.wire import ExecRequest
from harnessgym.sandboxes.archive import unpack
from harnessgym.sandboxes.collecting import Collected, export_with
from harnessgym.sandboxes.containers import HOME, WORKSPACE, Container
from harnessgym.sandboxes.folders import folder_of, outermost
from harnessgym.sandboxes.local_sandbox import awaited, bounds, refuse_empty, refuse_unwarmable, through
from harnessgym.sandboxes.relay import RelayListener, SandboxRelay
from harnessgym.sandboxes.usage import Meter
from harnessgym.sandboxes.workspace import Workspace
from harnessgym.task import Limits

if TYPE_CHECKING:
    from harnessgym.sandboxes.docker import Docker

_MIB = 1 << 20
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_ROOTS = "/root"
_PYTHONS = ("python", "python3")


class DockerSandbox:
    """One container. See `harnessgym.sandbox.Sandbox`."""

    def __init__(self, backend: "Docker", equipment: Equipment, limits: Limits, container: Container) -> None:
        self._backend = backend
        self._equipment = equipment
        self._limits = limits
        self._container = container
        self._meter = Meter(container.agent.pid)
        self._files = Workspace(container.root, backend.owner, backend.options.read_mb * _MIB)
        self._listening: RelayListener | None = None
        self._running: set[asyncio.Task[ExecResult]] = set()
        self._closing: asyncio.Task[None] | None = None
        self.capabilities = backend.capabilities
        self.proxy_url = ""
        self.workspace = _path_of_workspace(container)

    @property
    def id(self) -> str:
        """The container's id."""
        return self._container.id

    @property
    def host_pid(self) -> int:
        """The agent's process id on this machine; 0 if it is unknown."""
        return self._container.agent.pid

    async def exec(self, cmd: Sequence[str], **options: Unpack[ExecOptions]) -> ExecResult:
        """See `Sandbox.exec`."""
        refuse_empty(cmd)
        # Containers start every command cold, but refuse the same commands as backends that can warm them.
        if options.get("prewarm") is not None:
            refuse_unwarmable(cmd, is_python=Path(cmd[0]).name in _PYTHONS)
        self._check_readable(options.get("readable", ()))
        uid = self._uid(options.get("user"))
        outside = options.get("outside")
        timeout_s, most = bounds(options, self._limits)
        order = ExecRequest(
            argv=list(cmd),
            env={**self._env(uid), **(outside.env if outside else {}), **(options.get("env") or {})},
            cwd=os.path.normpath(os.path.join(WORKSPACE, options.get("cwd", "."))),
            user=uid,
            timeout_s=timeout_s,
            file_bytes=self._backend.options.file_mb * _MIB,
            programs=_programs(cmd[0]),
            judges=self._equipment.grades,
        )
        owner = uid if os.getuid() == 0 else None
        run = asyncio.create_task(
            self._run(order, options.get("stdin"), most, options.get("on_output"), owner, outside)
        )
        self._running.add(run)
        run.add_done_callback(self._running.discard)
        return await awaited(run)

    async def read(self, path: str) -> bytes:
        """See `Sandbox.read`."""
        return await asyncio.to_thread(self._open_files().read, path)

    async def write(self, path: str, data: bytes) -> None:
        """See `Sandbox.write`."""
        await asyncio.to_thread(self._open_files().write, path, data)

    async def upload(self, local: Path, path: str) -> None:
        """See `Sandbox.upload`."""
        await asyncio.to_thread(self._open_files().copy_in, local, path)

    async def download(self, path: str, local: Path) -> None:
        """See `Sandbox.download`."""
        await asyncio.to_thread(self._open_files().copy_out, path, local)

    async def export(
        self, local: Path, *, max_bytes: int, max_files: int, collect: Sequence[str] = ()
    ) -> WorkspaceExport:
        """See `Sandbox.export`."""
        files = self._open_files()
        if not collect:
            return await asyncio.to_thread(files.export, local, max_bytes, max_files)
        with contextlib.ExitStack() as stack:
            collected = [await self._collected(path, stack) for path in outermost(collect)]
            return await asyncio.to_thread(
                export_with, files, local, collected, self._backend.owner, max_bytes, max_files
            )

    async def kill_all(self) -> None:
        """See `Sandbox.kill_all`."""
        # If the agent is gone, so are all processes. The kill is requested before the container is resumed:
        # the agent must read it before the harness can do anything.
        if not self._container.agent.gone:
            await asyncio.gather(self._container.agent.kill_all(), self.resume())

    async def pause(self) -> None:
        """See `Sandbox.pause`."""
        if not self._container.paused:
            await self._backend.containers.pause(self._container)

    async def resume(self) -> None:
        """See `Sandbox.resume`."""
        if self._container.paused:
            await self._backend.containers.resume(self._container)

    async def stats(self) -> Stats:
        """See `Sandbox.stats`."""
        self._open_files()
        return await asyncio.to_thread(self._meter.read, self._container.root)

    async def snapshot(self) -> Snapshot:
        """See `Sandbox.snapshot`."""
        return await self._backend.keep(self._open_files(), self._limits)

    async def fork(self, snapshot: Snapshot) -> "DockerSandbox":
        """See `Sandbox.fork`."""
        return await self._backend.continued(snapshot, self._limits, self._equipment)

    async def lay(self, archive: Path) -> None:
        """Unpacks an archive over the workspace."""
        await asyncio.to_thread(unpack, archive, self._open_files())

    async def aclose(self) -> None:
        """Kills all processes, then removes the container."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        await through(self._closing)

    async def serve(self, relay: SandboxRelay, port: int) -> None:
        """Connects loopback port `port` of the sandbox to the proxy."""
        self._listening = await relay.serve(await self._container.agent.listen(port))
        self.proxy_url = f"http://127.0.0.1:{port}"

    async def _close(self) -> None:
        if self._listening is not None:
            self._listening.close()
        # A paused agent cannot end its commands. If the container cannot be resumed, it is removed as it is.
        with contextlib.suppress(SandboxError):
            await self.resume()
        for run in list(self._running):
            run.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        try:
            await self._backend.containers.remove(self._container)
        # Forget it even on an error: the caller gets the error once, and the reaper removes the container.
        finally:
            self._backend.forget(self)

    async def _run(
        self,
        order: ExecRequest,
        stdin: bytes | None,
        max_output: int,
        on_output: OnOutput | None,
        owner: int | None,
        outside: Outside | None,
    ) -> ExecResult:
        """Runs a command; `outside` can be reached exactly while it runs."""
        agent = self._container.agent
        serving: Serving | None = None
        if outside is not None:
            serving = await outside.serve(await agent.listen(outside.port))
        try:
            return await agent.run(
                order, stdin=stdin, max_output=max_output, on_output=on_output, owner=owner
            )
        finally:
            if serving is not None:
                serving.close()

    async def _collected(self, path: str, stack: contextlib.ExitStack) -> Collected:
        """Locates a path beside the workspace. `stack` closes the descriptor of its folder."""
        folders = self._container.plan.folders
        folder = folder_of(path, folders)
        if folder is None:
            raise SandboxError(
                f"{path!r} cannot be collected: it lies in none of the sandbox's folders "
                f"({', '.join(folders)})."
            )
        root = await self._container.agent.root(1 + folders.index(folder))
        stack.callback(os.close, root)
        return Collected(path, root, PurePosixPath(path).relative_to(folder).parts)

    def _open_files(self) -> Workspace:
        if self._container.root < 0 or self._container.agent.gone:
            raise SandboxError("The sandbox is gone: its container ended or was closed. Open a new one.")
        return self._files

    def _uid(self, user: str | None) -> int:
        if user is None:
            return self._backend.user
        if user == "root":
            return 0
        raise SandboxError(
            f"A command can be run as the harness's user (None) or as 'root', not as {user!r}."
        )

    def _env(self, uid: int) -> dict[str, str]:
        """The image's environment with the usual defaults.

        Root gets a home that the harness cannot write, because programs trust the settings in it.
        """
        name, home = ("root", _home_of_root(self._container)) if uid == 0 else ("agent", HOME)
        own = {"HOME": home, "USER": name, "LOGNAME": name, "TMPDIR": "/tmp", "LANG": "C.UTF-8"}  # noqa: S108
        return {
            "PATH": _PATH,
            **own,
            **dict(self._container.plan.image.env),
            **dict(self._equipment.env),
            "HOME": home,
        }

    def _check_readable(self, readable: Sequence[str]) -> None:
        mounted = self._container.plan.readable
        for path in readable:
            if not any(Path(path).is_relative_to(each) for each in mounted):
                raise SandboxError(
                    f"A command in a container cannot read {path}: paths are mounted when the sandbox "
                    "is opened. Name it in its Equipment(readable=...)."
                )


def _path_of_workspace(container: Container) -> Path:
    """The workspace's path on this machine.

    The path goes through the agent's `/proc` root, which only root may enter, else through a link to our
    descriptor. Both vanish with the sandbox. A bare `/proc/self/fd/N` would then name another open file.
    """
    through_agent = Path(f"/proc/{container.agent.pid}/root{WORKSPACE}")
    if os.access(through_agent, os.R_OK):
        return through_agent
    link = container.folder / "workspace"
    link.symlink_to(f"/proc/{os.getpid()}/fd/{container.root}")
    return link


def _home_of_root(container: Container) -> str:
    """Root's home: never a path that links to the workspace."""
    return "/" if container.plan.image.home == _ROOTS else _ROOTS


def _programs(program: str) -> tuple[str, ...]:
    """The programs to try for a name: `python` and `python3` stand for each other."""
    return (program, *(each for each in _PYTHONS if each != program)) if program in _PYTHONS else (program,)
