"""The Docker backend: one container per rollout, from the task's own image, limited as a whole.

A container has no network, no capability, a read-only root, and its files in memory: `/workspace`, `/tmp`,
the home folder. Commands do not go through the engine. The agent, which is PID 1 (`agent/`), receives orders
over a socket and starts them. It gives the node a descriptor of the workspace and a listener on the
container's loopback, which the relay serves from outside. The engine is only needed to create, pause and
remove a container; in between it may even be down.

Files count against the memory limit, so a task needs `memory_mb` for its processes and its files. `disk_mb`
limits the workspace and each folder that a task has beside it. Each scratch folder is limited to `tmp_mb`.
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
    """Folder in which the proxy keeps its socket `proxy.sock`. Without it, sandboxes can reach nothing."""
    port: int = 8080
    """Loopback port of the proxy, inside."""
    image: str = "harnessgym/python:latest"
    """The image of a sandbox whose task names none."""
    user: int = 1000
    """User and group id of harnesses, inside and outside, if the node runs as root. Otherwise harnesses have
    the node's own ids."""
    tmp_mb: int = 64
    """Size of each private in-memory folder: `/tmp`, home, `/dev/shm`, and the image's volumes."""
    host: str = ""
    """The engine, such as `unix:///run/docker.sock`; by default `DOCKER_HOST`, else the usual socket. It
    must be on this machine: sandboxes are reached through files."""
    spares: int = 4
    """Most containers that are started ahead of demand and kept paused; 0 starts each on demand."""
    reap_s: float = 60.0
    """Seconds between two searches for containers that dead nodes of the same folder left."""
    engine_wait_s: float = 30.0
    """How long calls wait for an engine that does not answer, such as during a restart. Running commands do
    not need the engine."""


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
        """User who gets the files of a workspace; None if they stay ours."""
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
        """The node's containers. Raises SandboxError before the backend is opened."""
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
        """Counts of the warm pool, such as how many claims found a spare container."""
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
        """Opens a sandbox, which the caller closes."""
        starting = asyncio.create_task(self._start(limits, equipment))
        self._starting.add(starting)
        starting.add_done_callback(self._starting.discard)
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            starting.cancel()
            await asyncio.wait({starting})
            # The sandbox may have been opened just before the cancellation; nobody else would close it.
            if not starting.cancelled() and starting.exception() is None:
                await starting.result().aclose()
            raise

    async def plan(self, limits: Limits, equipment: Equipment) -> ContainerPlan:
        """Returns the plan of a container for these limits and equipment. Builds the image if it is missing.

        Containers of equal plans are interchangeable.
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
        """Drops a closed sandbox."""
        self._open.discard(sandbox)

    async def keep(self, workspace: Workspace, limits: Limits) -> Snapshot:
        """Packs a workspace into the node's folder. Raises SandboxError if it exceeds `limits.disk_mb`."""
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
        """Opens a sandbox with a snapshot's files. Raises SandboxError for another backend's snapshot."""
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
        """Returns the image with the equipment installed; builds it if it is missing. Blocks."""
        from harnessgym.sandboxes.images.connection import EngineConnection
        from harnessgym.sandboxes.images.layers import ensure

        with EngineConnection(self.options.host) as connection:
            return ensure(image, equipment.install, home=equipment.home, engine=connection)

    async def _end(self) -> None:
        """Closes every sandbox, then the backend."""
        # Sandboxes that are still being opened come first; a cancelled start closes its own container.
        for starting in list(self._starting):
            starting.cancel()
        await asyncio.gather(*self._starting, return_exceptions=True)
        await asyncio.gather(*(sandbox.aclose() for sandbox in list(self._open)))
        await self._leave()

    async def _reap(self, containers: Containers) -> None:
        """Removes what dead nodes left, every `reap_s` seconds: a node of this folder may die at any time."""
        while True:
            await asyncio.sleep(self.options.reap_s)
            try:
                await containers.reap()
            except SandboxError as error:
                _LOG.warning("Containers of dead nodes could not be listed: %s", error)

    async def _leave(self) -> None:
        if self._reaping is not None:
            self._reaping.cancel()
            await asyncio.gather(self._reaping, return_exceptions=True)
        # The pool's spares and half-started containers need the engine and the folder, so they go first. The
        # lease is released last: until then no other node takes the folder for abandoned.
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
