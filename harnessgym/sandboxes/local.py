"""Sandboxes on this machine: one folder and one fork per rollout, one fork server per kind of interpreter.

`process` and `bubblewrap` differ in what stands around the fork server and in whether a fork gets namespaces; everything
else is here. After a node was killed, the next one to open the same `workspace_root` removes what it left.
"""

import asyncio
import fcntl
import os
import shutil
import socket
import tempfile
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from pydantic import BaseModel, ConfigDict, Field

from harnessgym.errors import CapabilityError, SandboxError
from harnessgym.sandbox import PLAIN, Capability, Equipment, ExecResult, Prewarm, Snapshot, require
from harnessgym.sandboxes.forking import ForkServer, Spec, interpreter
from harnessgym.sandboxes.forkserver.wire import Order
from harnessgym.sandboxes.relay import Listening, Relay
from harnessgym.sandboxes.workspace import Workspace
from harnessgym.task import Limits

_LABEL = "harnessgym-node-"
_MIB = 1 << 20


class LocalSettings(BaseModel):
    """What every backend on this machine can be told."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    workspace_root: Path = Field(default_factory=lambda: Path(tempfile.gettempdir()) / f"harnessgym-{os.getuid()}")
    """Folder for workspaces. Each node makes a folder of its own in it, and removes those of nodes that died."""
    file_mb: int = 256
    """Largest file a harness may write."""
    read_mb: int = 64
    """Most that one `read` or `download` takes out of a workspace."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where one rollout's things are, as its own processes see them."""

    workspace: str
    env: Mapping[str, str]
    """Its environment before the harness's own."""


class LocalSandbox:
    """One rollout's folder, and commands run in it by a fork server."""

    def __init__(self, backend: "LocalBackend", folder: Path, limits: Limits) -> None:
        self._backend = backend
        self._limits = limits
        self._place = backend.place(folder)
        self._files = Workspace(folder / "workspace", backend.owner, backend.options.read_mb * _MIB)
        self._running: set[asyncio.Task[ExecResult]] = set()
        self.capabilities = backend.capabilities
        self.proxy_url = backend.proxy_url
        self.workspace = self._files.root

    async def exec(
        self,
        cmd: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str = ".",
        user: str | None = None,
        stdin: bytes | None = None,
        timeout_s: float | None = None,
        max_output: int | None = None,
        prewarm: Prewarm | None = None,
        readable: Sequence[str] = (),
    ) -> ExecResult:
        """See `Sandbox.exec`."""
        if user == "root":
            require(self.capabilities, frozenset({Capability.ROOT}))
        if not cmd:
            raise SandboxError("A sandbox was asked to run an empty command.")
        kind = prewarm or Prewarm()
        order = self._order(interpreter(cmd, kind.python), env or {}, cwd, prewarm)
        server = await self._backend.server(kind, tuple(sorted(readable)))
        run = asyncio.create_task(
            self._run(
                server,
                self._backend.confine(order, self.workspace, readable),
                stdin,
                self._limits.wall_s if timeout_s is None else timeout_s,
                self._limits.output_bytes if max_output is None else max_output,
            )
        )
        self._running.add(run)
        run.add_done_callback(self._running.discard)
        try:
            return await asyncio.shield(run)
        except asyncio.CancelledError:
            run.cancel()
            await asyncio.gather(run, return_exceptions=True)
            raise

    async def read(self, path: str) -> bytes:
        """See `Sandbox.read`."""
        return await asyncio.to_thread(self._files.read, path)

    async def write(self, path: str, data: bytes) -> None:
        """See `Sandbox.write`."""
        await asyncio.to_thread(self._files.write, path, data)

    async def upload(self, local: Path, path: str) -> None:
        """See `Sandbox.upload`."""
        await asyncio.to_thread(self._files.copy_in, local, path)

    async def download(self, path: str, local: Path) -> None:
        """See `Sandbox.download`."""
        await asyncio.to_thread(self._files.copy_out, path, local)

    async def snapshot(self) -> Snapshot:
        """See `Sandbox.snapshot`."""
        raise CapabilityError(f"The {self._backend.name} sandbox keeps no snapshots. Copy the workspace with download().")

    async def fork(self, snapshot: Snapshot) -> "LocalSandbox":  # noqa: ARG002
        """See `Sandbox.fork`."""
        raise CapabilityError(f"The {self._backend.name} sandbox cannot be forked. Open a new one and upload() into it.")

    async def aclose(self) -> None:
        """Kills what runs, then removes the folder."""
        for run in list(self._running):
            run.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        await asyncio.to_thread(Workspace(self.workspace.parent, None, 0).remove)

    def _order(self, argv: list[str], env: Mapping[str, str], cwd: str, prewarm: Prewarm | None) -> Order:
        if prewarm is not None and argv[0] not in (prewarm.python or interpreter(["python"], "")):
            raise SandboxError(f"Only a Python command can be prewarmed, not {argv[0]!r}. Start it with `python`.")
        if prewarm is not None and len(argv) < (3 if argv[1:2] == ["-m"] else 2):
            raise SandboxError("A prewarmed command must name its program: `python program.py` or `python -m module`.")
        limits = self._limits
        return Order(
            argv=argv,
            env={**self._place.env, **env},
            cwd=os.path.normpath(os.path.join(self._place.workspace, cwd)),
            workspace=self._place.workspace,
            python=prewarm is not None,
            memory_bytes=limits.memory_mb * _MIB,
            processes=limits.processes + 1,  # the init counts too
            file_bytes=self._backend.options.file_mb * _MIB,
            namespaces=False,
        )

    async def _run(
        self, server: ForkServer, order: Order, stdin: bytes | None, timeout_s: float, max_output: int
    ) -> ExecResult:
        """The relay's listener lives exactly as long as the command."""
        relay = self._backend.relay
        listening: list[Listening] = []

        async def listen(listener: socket.socket) -> None:
            assert relay is not None
            listening.append(await relay.serve(listener))

        try:
            return await server.run(
                order, stdin=stdin, timeout_s=timeout_s, max_output=max_output, on_listener=listen if relay else None
            )
        finally:
            for each in listening:
                each.close()


class LocalBackend:
    """Base of the backends on this machine: the node's folder, its fork servers, its sandboxes."""

    name = "local"
    capabilities: frozenset[Capability] = frozenset()
    settings: type[BaseModel] = LocalSettings
    owner: int | None = None
    """User and group that workspaces belong to; None when it is ours."""
    proxy_url = ""
    relay: Relay | None = None

    def __init__(self, settings: LocalSettings) -> None:
        self.options = settings
        self._root: Path | None = None
        self._lease = -1
        self._servers: dict[tuple[Prewarm, tuple[str, ...]], ForkServer] = {}
        self._open: set[LocalSandbox] = set()

    @property
    def root(self) -> Path:
        """The folder of this node. Raises SandboxError before the backend is opened."""
        if self._root is None:
            raise SandboxError(f"The {self.name} backend is not open. Use `async with` around it.")
        return self._root

    async def __aenter__(self) -> Self:
        self._root, self._lease = await asyncio.to_thread(_claim, self.options.workspace_root)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for sandbox in list(self._open):
            await sandbox.aclose()
        await asyncio.gather(*(server.aclose() for server in self._servers.values()))
        self._servers.clear()
        await asyncio.to_thread(shutil.rmtree, self.root, ignore_errors=True)
        os.close(self._lease)
        self._root = None

    @asynccontextmanager
    async def open(self, limits: Limits, equipment: Equipment = PLAIN) -> AsyncIterator[LocalSandbox]:  # noqa: ARG002
        """See `SandboxBackend.open`."""
        folder = self.root / uuid.uuid4().hex
        await asyncio.to_thread(self.furnish, folder)
        sandbox = LocalSandbox(self, folder, limits)
        self._open.add(sandbox)
        try:
            yield sandbox
        finally:
            self._open.discard(sandbox)
            await sandbox.aclose()

    async def server(self, prewarm: Prewarm, readable: tuple[str, ...]) -> ForkServer:
        """The fork server for one kind of interpreter that may see `readable`, started if need be."""
        key = (prewarm, readable)
        if key not in self._servers:
            self._servers[key] = ForkServer(self.spec(prewarm, readable))
        server = self._servers[key]
        await server.start()
        return server

    def furnish(self, folder: Path) -> None:
        """Makes one rollout's folders."""
        folder.mkdir(mode=0o711)
        Workspace(folder / "workspace", self.owner, 0).make()

    def place(self, folder: Path) -> Place:
        """Where the things in `folder` are, seen from inside."""
        raise NotImplementedError

    def spec(self, prewarm: Prewarm, readable: tuple[str, ...]) -> Spec:
        """How to start a fork server."""
        raise NotImplementedError

    def confine(self, order: Order, workspace: Path, readable: Sequence[str]) -> Order:  # noqa: ARG002
        """Adds to an order what this backend puts around a rollout."""
        return order


def _claim(root: Path) -> tuple[Path, int]:
    """Makes this node's folder and locks it, after removing the unlocked folders of nodes that died."""
    root.mkdir(parents=True, exist_ok=True, mode=0o711)
    gate = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(gate, fcntl.LOCK_EX)  # nobody looks between the making of a folder and its lock
        for folder in root.glob(f"{_LABEL}*"):
            _remove_if_abandoned(folder)
        folder = Path(tempfile.mkdtemp(prefix=f"{_LABEL}{os.getpid()}-", dir=root))
        folder.chmod(0o711)
        lease = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(lease, fcntl.LOCK_EX)
    finally:
        os.close(gate)
    return folder, lease


def _remove_if_abandoned(folder: Path) -> None:
    try:
        lease = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return
    try:
        fcntl.flock(lease, fcntl.LOCK_EX | fcntl.LOCK_NB)
        Workspace(folder, None, 0).remove()
    except OSError:  # a living node's, or another user's
        return
    finally:
        os.close(lease)
