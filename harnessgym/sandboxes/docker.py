"""Docker: a container per rollout, from the task's own image, with limits that hold for all of its processes
together.

A container has no network, no capability, a read-only root, and its files in memory: `/workspace`, `/tmp`,
the home folder. Commands do not go through the engine: the agent that is PID 1 (`agent/`) starts them on
orders over a socket, hands the node a descriptor of the workspace, and a listener on the container's loopback
that the relay serves from outside. So the engine is asked when a container is made, paused and removed, and
in between may even be away.

Limits: what is written counts as memory too, so a task needs `memory_mb` for its processes and its files.
`disk_mb` bounds the workspace, and each folder that a task has beside it; the scratch folders have `tmp_mb`
each.
"""

import asyncio
import logging
import os
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from pydantic import BaseModel

from harnessgym.errors import SandboxError
from harnessgym.sandbox import CONTEXT, PLAIN, Capability, Equipment, Snapshot
from harnessgym.sandboxes import engine
from harnessgym.sandboxes.archive import pack
from harnessgym.sandboxes.containers import Container, ContainerPlan, Containers
from harnessgym.sandboxes.docker_sandbox import DockerSandbox
from harnessgym.sandboxes.engine import DockerEngine
from harnessgym.sandboxes.folders import check_apart, checked_folders
from harnessgym.sandboxes.lease import Lease, claim
from harnessgym.sandboxes.local import LocalSettings
from harnessgym.sandboxes.local_sandbox import through
from harnessgym.sandboxes.pool import PoolCounts, Spares, WarmPool
from harnessgym.sandboxes.relay import SandboxRelay
from harnessgym.sandboxes.workspace import Workspace
from harnessgym.task import Limits

_LOG = logging.getLogger("harnessgym.docker")
_SNAPSHOT_FILES = 1_000_000


class DockerSettings(LocalSettings):
    """Settings of the `docker` backend."""

    proxy_socket_dir: Path | None = None
    """Folder in which the proxy keeps its socket `proxy.sock`. Without one, nothing at all can be reached."""
    port: int = 8080
    """Loopback port of the proxy, inside."""
    image: str = "harnessgym/python:latest"
    """What a sandbox is made from when its task names no image."""
    user: int = 1000
    """User and group id of harnesses, inside and outside, when the node runs as root; otherwise they are
    the node's own."""
    tmp_mb: int = 64
    """Size of each private in-memory folder (`/tmp`, home, `/dev/shm`, and what the image declares as a
    volume)."""
    host: str = ""
    """The engine, such as `unix:///run/docker.sock`; by default `DOCKER_HOST`, else the usual socket. It
    must be on this machine: sandboxes are reached through files."""
    spares: int = 4
    """Containers that are started ahead of demand and kept paused, at most; 0 starts each when it is asked
    for."""
    reap_s: float = 60.0
    """Seconds between two looks for what dead nodes of the same folder left."""
    engine_wait_s: float = 30.0
    """How long the engine may be away, as when it is started again, before what needs it fails. What runs
    does not need it."""


class Docker:
    """Opens containers on one Docker engine."""

    name = "docker"
    settings: type[BaseModel] = DockerSettings
    capabilities = frozenset(
        {
            Capability.NETWORK,
            Capability.FILES,
            Capability.PROCESSES,
            Capability.IMAGE,
            Capability.ROOT,
            Capability.SNAPSHOT,
            Capability.DISK,
            Capability.MEMORY,
            Capability.CPU,
            Capability.PAUSE,
            Capability.STATS,
            Capability.HOSTS,
        }
    )

    def __init__(self, settings: DockerSettings | None = None) -> None:
        self.options = settings or DockerSettings()
        self.user = self.options.user if os.getuid() == 0 else os.getuid()
        self.owner = self.user if os.getuid() == 0 else None
        """Whom files of a workspace are given to; None when they are ours."""
        self._lease: Lease | None = None
        self._engine: DockerEngine | None = None
        self._containers: Containers | None = None
        self._pool: WarmPool[ContainerPlan, Container] | None = None
        self._reaping: asyncio.Task[None] | None = None
        self._open: set[DockerSandbox] = set()
        self._starting: set[asyncio.Task[DockerSandbox]] = set()
        self._snapshots: dict[str, Path] = {}
        folder = self.options.proxy_socket_dir
        self._relay = None if folder is None else SandboxRelay(folder / "proxy.sock")

    @staticmethod
    def unavailable() -> str | None:
        """See `harnessgym.sandboxes.engine.unavailable`."""
        return engine.unavailable()

    @property
    def root(self) -> Path:
        """The folder of this node. Raises SandboxError before the backend is opened."""
        if self._lease is None:
            raise SandboxError("The docker backend is not open. Use `async with` around it.")
        return self._lease.folder

    @property
    def containers(self) -> Containers:
        """Raises SandboxError before the backend is opened."""
        if self._containers is None:
            raise SandboxError("The docker backend is not open. Use `async with` around it.")
        return self._containers

    async def __aenter__(self) -> Self:
        self._engine = await asyncio.to_thread(DockerEngine, self.options.host, self.options.engine_wait_s)
        try:
            self._lease = await asyncio.to_thread(claim, self.options.workspace_root)
            self._containers = Containers(self._engine, self._lease, self.user)
            await self._containers.reap()
            self._pool = await WarmPool(Spares(self._containers), most=self.options.spares).__aenter__()
            self._reaping = asyncio.create_task(self._reap(self._containers))
        except BaseException:
            await self._leave()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await through(asyncio.create_task(self._end()))

    @property
    def pool(self) -> PoolCounts:
        """How many claims found a spare container, and how many did not."""
        return PoolCounts(0, 0, 0, 0) if self._pool is None else self._pool.counts

    @asynccontextmanager
    async def open(self, limits: Limits, equipment: Equipment = PLAIN) -> AsyncIterator[DockerSandbox]:
        """See `SandboxBackend.open`."""
        sandbox = await self.start(limits, equipment)
        try:
            yield sandbox
        finally:
            await sandbox.aclose()

    async def start(self, limits: Limits, equipment: Equipment) -> DockerSandbox:
        """A sandbox that the caller closes."""
        starting = asyncio.create_task(self._start(limits, equipment))
        self._starting.add(starting)
        starting.add_done_callback(self._starting.discard)
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            starting.cancel()
            await asyncio.wait({starting})
            if not starting.cancelled() and starting.exception() is None:  # it was there already
                await starting.result().aclose()
            raise

    async def plan(self, limits: Limits, equipment: Equipment) -> ContainerPlan:
        """What a container for these is made from; equal ones can stand for each other. Builds the image
        if need be.
        """
        containers = self.containers
        name = equipment.image or self.options.image
        if equipment.install or equipment.home or name.startswith(CONTEXT):
            name = await asyncio.to_thread(self._made, name, equipment)
        readable = tuple(sorted({os.path.abspath(path) for path in equipment.readable}))
        missing = [path for path in readable if not os.path.exists(path)]
        if missing:
            raise SandboxError(
                f"{missing[0]} cannot be made readable in a sandbox: it is not on this machine."
            )
        image = await containers.image(name)
        folders = checked_folders(equipment.folders)
        check_apart(folders, image.home)
        return ContainerPlan.of(image, limits, readable, self.user, self.options.tmp_mb, folders)

    def forget(self, sandbox: DockerSandbox) -> None:
        """It is closed."""
        self._open.discard(sandbox)

    async def keep(self, workspace: Workspace, limits: Limits) -> Snapshot:
        """Packs a workspace into the node's folder. Raises SandboxError when it holds more than its limit
        of disk.
        """
        snapshot = Snapshot(self.name, uuid.uuid4().hex)
        folder = self.root / "snapshots"
        folder.mkdir(mode=0o700, exist_ok=True)
        file = folder / f"{snapshot.id}.tar"
        await asyncio.to_thread(
            pack, workspace, file, max_bytes=limits.disk_mb << 20, max_files=_SNAPSHOT_FILES
        )
        self._snapshots[snapshot.id] = file
        return snapshot

    async def continued(self, snapshot: Snapshot, limits: Limits, equipment: Equipment) -> DockerSandbox:
        """A sandbox whose workspace holds a snapshot's files. Raises SandboxError for a snapshot of
        somebody else's.
        """
        file = self._snapshots.get(snapshot.id)
        if file is None or snapshot.backend != self.name:
            raise SandboxError(
                f"This {self.name} backend has no snapshot {snapshot.id!r}. Fork where it was made."
            )
        sandbox = await self.start(limits, equipment)
        try:
            await sandbox.lay(file)
        except BaseException:
            await sandbox.aclose()
            raise
        return sandbox

    async def _start(self, limits: Limits, equipment: Equipment) -> DockerSandbox:
        plan = await self.plan(limits, equipment)
        assert self._pool is not None
        container = await self._pool.claim(plan)
        sandbox = DockerSandbox(self, equipment, limits, container)
        self._open.add(sandbox)
        try:
            if equipment.proxy and self._relay is not None:
                await sandbox.serve(self._relay, self.options.port)
        except BaseException:
            await sandbox.aclose()
            raise
        return sandbox

    def _made(self, image: str, equipment: Equipment) -> str:
        """The image as the equipment wants it, built if need be. Blocks."""
        from harnessgym.sandboxes.images.connection import EngineConnection
        from harnessgym.sandboxes.images.layers import ensure

        with EngineConnection(self.options.host) as connection:
            return ensure(image, equipment.install, home=equipment.home, engine=connection)

    async def _end(self) -> None:
        """Sandboxes that are being opened end too; each closes itself."""
        for starting in list(self._starting):
            starting.cancel()
        await asyncio.gather(*self._starting, return_exceptions=True)
        await asyncio.gather(*(sandbox.aclose() for sandbox in list(self._open)))
        await self._leave()

    async def _reap(self, containers: Containers) -> None:
        """Again and again: other nodes of this folder die too."""
        while True:
            await asyncio.sleep(self.options.reap_s)
            try:
                await containers.reap()
            except SandboxError as error:
                _LOG.warning("What dead nodes left could not be looked for: %s", error)

    async def _leave(self) -> None:
        if self._reaping is not None:
            self._reaping.cancel()
            await asyncio.gather(self._reaping, return_exceptions=True)
        if self._pool is not None:
            await self._pool.__aexit__()
            self._pool = None
        if self._containers is not None:
            await self._containers.aclose()
        lease = self._lease
        self._lease = None
        self._containers = None
        if lease is not None:
            await asyncio.to_thread(Workspace(lease.folder, None, 0).remove)
            lease.release()
        if self._engine is not None:
            await asyncio.to_thread(self._engine.close)
            self._engine = None
