"""Sandboxes on this machine: one folder and one fork per rollout, one fork server per kind of interpreter.

`process` and `bubblewrap` differ in what runs around the fork server and in whether a fork gets namespaces;
everything else is here. If a node is killed, the next one that opens the same `workspace_root` removes its
folder.
"""

import array
import asyncio
import contextlib
import fcntl
import os
import shutil
import tempfile
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from pydantic import Field

from harnessgym.config import Config
from harnessgym.errors import SandboxError
from harnessgym.sandbox import PLAIN, Capability, Equipment, Prewarm, Snapshot, require
from harnessgym.sandboxes.archive import pack, unpack
from harnessgym.sandboxes.forking import ForkServer, Spec
from harnessgym.sandboxes.forkserver.wire import ForkOrder
from harnessgym.sandboxes.lease import Lease, claim
from harnessgym.sandboxes.local_sandbox import LocalSandbox, SandboxPaths, through
from harnessgym.sandboxes.relay import SandboxRelay
from harnessgym.sandboxes.workspace import Workspace
from harnessgym.task import Limits

_GET_FLAGS = 0x8008_6601
_SET_FLAGS = 0x4008_6602
_TOP_LEVEL = 0x0002_0000
"""The flag that `chattr +T` sets: the file system spreads the folders inside over the disk."""


def spread(folder: Path) -> None:
    """Sets `chattr +T` on a folder of ours. Does nothing on a file system without that flag."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):
            flags = array.array("l", [0])
            fcntl.ioctl(descriptor, _GET_FLAGS, flags)
            flags[0] |= _TOP_LEVEL
            fcntl.ioctl(descriptor, _SET_FLAGS, flags)
    finally:
        os.close(descriptor)


_MIB = 1 << 20
_SNAPSHOT_FILES = 200_000


class LocalSettings(Config):
    """Settings of every backend on this machine."""

    workspace_root: Path = Field(
        default_factory=lambda: Path(tempfile.gettempdir()) / f"harnessgym-{os.getuid()}"
    )
    """Folder for workspaces. Each node makes its own folder in it and removes those of dead nodes."""
    file_mb: int = 256
    """Largest file a harness may write."""
    read_mb: int = 64
    """Most that one `read` or `download` may read from a workspace."""


class LocalBackend:
    """Base of the backends on this machine: the node's folder, its fork servers, its sandboxes."""

    name = "local"
    capabilities: frozenset[Capability] = frozenset()
    settings: type[LocalSettings] = LocalSettings
    owner: int | None = None
    """User and group that workspaces belong to; None if they stay ours."""
    proxy_url = ""
    relay: SandboxRelay | None = None
    port = 0
    """Loopback port of the relay, inside; 0 if there is no relay."""

    def __init__(self, settings: LocalSettings) -> None:
        self.options = settings
        self._lease: Lease | None = None
        self._servers: dict[tuple[Prewarm, tuple[str, ...]], ForkServer] = {}
        self._open: set[LocalSandbox] = set()
        self._snapshots: dict[str, Path] = {}

    @property
    def root(self) -> Path:
        """The folder of this node. Raises SandboxError before the backend is opened."""
        if self._lease is None:
            raise SandboxError(f"The {self.name} backend is not open. Use `async with` around it.")
        return self._lease.folder

    async def __aenter__(self) -> Self:
        self._lease = await asyncio.to_thread(claim, self.options.workspace_root)
        spread(self._lease.folder)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await through(asyncio.create_task(self._end()))

    async def _end(self) -> None:
        # Sandboxes before servers, so that commands end orderly. The lease goes last: once it is released,
        # another node may take the folder for abandoned.
        await asyncio.gather(*(sandbox.aclose() for sandbox in list(self._open)))
        await asyncio.gather(*(server.aclose() for server in self._servers.values()))
        self._servers.clear()
        self._snapshots.clear()
        await asyncio.to_thread(shutil.rmtree, self.root, ignore_errors=True)
        if self._lease is not None:
            self._lease.release()
            self._lease = None

    @asynccontextmanager
    async def open(self, limits: Limits, equipment: Equipment = PLAIN) -> AsyncIterator[LocalSandbox]:
        """See `SandboxBackend.open`. Raises CapabilityError if the equipment names an image."""
        sandbox = await self._opened(limits, equipment)
        try:
            yield sandbox
        finally:
            await sandbox.aclose()

    async def _opened(self, limits: Limits, equipment: Equipment) -> LocalSandbox:
        if equipment.image:
            require(self.capabilities, frozenset({Capability.IMAGE}))
        folder = self.root / uuid.uuid4().hex
        await asyncio.to_thread(self.furnish, folder)
        sandbox = LocalSandbox(self, folder, limits, equipment)
        self._open.add(sandbox)
        return sandbox

    def forget(self, sandbox: LocalSandbox) -> None:
        """Drops a closed sandbox."""
        self._open.discard(sandbox)

    async def keep(self, workspace: Workspace, limits: Limits) -> Snapshot:
        """Packs a workspace into the node's folder. Raises SandboxError if it exceeds `limits.disk_mb`."""
        snapshot = Snapshot(self.name, uuid.uuid4().hex)
        folder = self.root / "snapshots"
        folder.mkdir(mode=0o700, exist_ok=True)
        file = folder / f"{snapshot.id}.tar"
        await asyncio.to_thread(
            pack, workspace, file, max_bytes=limits.disk_mb * _MIB, max_files=_SNAPSHOT_FILES
        )
        self._snapshots[snapshot.id] = file
        return snapshot

    async def continued(self, snapshot: Snapshot, limits: Limits, equipment: Equipment) -> LocalSandbox:
        """Opens a sandbox with a snapshot's files. Raises SandboxError for another backend's snapshot."""
        file = self._snapshots.get(snapshot.id)
        if file is None or snapshot.backend != self.name:
            raise SandboxError(
                f"This {self.name} backend has no snapshot {snapshot.id!r}. Fork where it was made."
            )
        sandbox = await self._opened(limits, equipment)
        try:
            await asyncio.to_thread(unpack, file, Workspace(sandbox.workspace, self.owner, 0))
        except BaseException:
            await sandbox.aclose()
            raise
        return sandbox

    async def server(self, prewarm: Prewarm, readable: tuple[str, ...]) -> ForkServer:
        """The fork server for one kind of interpreter that may see `readable`; starts it if needed."""
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

    def place(self, folder: Path) -> SandboxPaths:
        """The paths of a rollout's `folder` as its processes see them, and their environment."""
        raise NotImplementedError

    def spec(self, prewarm: Prewarm, readable: tuple[str, ...]) -> Spec:
        """How to start a fork server."""
        raise NotImplementedError

    def confine(
        self,
        order: ForkOrder,
        workspace: Path,  # noqa: ARG002
        readable: Sequence[str],  # noqa: ARG002
        port: int,  # noqa: ARG002
        python: str,  # noqa: ARG002
        hidden: tuple[str, ...],  # noqa: ARG002
    ) -> ForkOrder:
        """Adds this backend's isolation to an order.

        `python` is the interpreter that is forked; empty is ours. `hidden` is that of the equipment.
        """
        return order
