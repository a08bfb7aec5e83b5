"""Starts, pauses and removes sandbox containers: isolated, with the agent as PID 1, and never left behind.

The agent exits when the node's connection ends, and the engine removes a container whose agent has exited.
That fails for a container that was paused or never started when its node was killed. The next node that opens
the same folder removes it: the labels name the container's lease, and a container whose lease nobody locks is
abandoned.
"""

import asyncio
import contextlib
import logging
import os
import shutil
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harnessgym.errors import ImageError, SandboxError
from harnessgym.sandboxes.agent.wire import agent_binary
from harnessgym.sandboxes.agent_connection import SOCKET, AgentConnection, AgentSocket
from harnessgym.sandboxes.engine import DockerEngine, EngineError, accounts, sdk
from harnessgym.sandboxes.lease import Lease, is_abandoned
from harnessgym.sandboxes.local_sandbox import through
from harnessgym.task import Limits

_log = logging.getLogger(__name__)
WORKSPACE = "/workspace"
HOME = "/home/agent"
SET_ASIDE = "/.harnessgym/home"
"""Original content of the image's home, which links to the workspace (`harnessgym.sandboxes.images.layers`).
Only root can read it."""
ROOT_LABEL = "harnessgym.root"
NODE_LABEL = "harnessgym.node"
LEASE_LABEL = "harnessgym.lease"
HOME_LABEL = "harnessgym.home"
_AGENT = "/run/harnessgym/agent"
_SOCKET_FOLDER = "/run/harnessgym/door"
_KEPT = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "KILL", "SETGID", "SETPCAP", "SETUID")
"""The agent's capabilities. Commands get none; root's commands get those over files and users."""
_OWN_PROCESSES = 2
"""The agent and one supervisor."""
_START_S = 60.0
_LOOK_S = 2.0
_REMOVAL_S = 60.0
_NOT_FROZEN = "unable to freeze"
_FREEZE_AGAIN_S = (0.02, 0.05, 0.1, 0.2, 0.4, 0.8)
"""Pauses between attempts. On a busy machine, cgroup v1 may not freeze a process in the time runc allows."""
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Image:
    """An image, pinned to the id that its name had when it was first used."""

    id: str
    env: tuple[tuple[str, str], ...]
    volumes: tuple[str, ...]
    """Folders that it declares as volumes. The engine would make each writable and unbounded."""
    home: str
    """The path in it that links to the workspace; empty if there is none."""
    accounts: tuple[tuple[Path, str], ...]
    """Our files that name the harness's user, each with its path in the container."""


@dataclass(frozen=True, slots=True)
class ContainerPlan:
    """All properties in which two containers can differ. Containers of equal plans are interchangeable."""

    image: Image
    memory_mb: int
    disk_mb: int
    processes: int
    cpus: float
    readable: tuple[str, ...]
    inodes: tuple[tuple[int, int], ...]
    """Device and inode of each path in `readable`: a replaced file makes a different plan."""
    user: int
    tmp_mb: int
    folders: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        image: Image,
        limits: Limits,
        readable: tuple[str, ...],
        user: int,
        tmp_mb: int,
        folders: tuple[str, ...] = (),
    ) -> "ContainerPlan":
        """Returns the plan for a sandbox with these limits. Raises OSError if a readable path is missing."""
        inodes = tuple((status.st_dev, status.st_ino) for status in map(os.stat, readable))
        bounds = (limits.memory_mb, limits.disk_mb, limits.processes, limits.cpus)
        return cls(image, *bounds, readable, inodes, user, tmp_mb, folders)


@dataclass(slots=True)
class Container:
    """One running container, with the node's connection to it and its workspace."""

    id: str
    plan: ContainerPlan
    folder: Path
    agent: AgentConnection
    root: int
    """Descriptor of its workspace."""
    paused: bool = field(default=False)

    def close(self) -> None:
        """Closes the connection and the workspace. The container ends as a result."""
        self.agent.close()
        if self.root >= 0:
            os.close(self.root)
            self.root = -1


class Containers:
    """Starts and removes the containers of one node."""

    def __init__(self, engine: DockerEngine, lease: Lease, user: int) -> None:
        self._engine = engine
        self._root = root = lease.folder
        self._user = user
        self._labels = {ROOT_LABEL: str(root.parent), NODE_LABEL: root.name, LEASE_LABEL: str(root)}
        self._images: dict[str, asyncio.Task[Image]] = {}
        # Two names may stand for one image, whose account files must be written only once at a time.
        self._one_at_a_time = asyncio.Lock()
        self._tidying: set[asyncio.Task[None]] = set()
        self._left: set[str] = set()
        """Containers that could not be removed because the engine did not answer."""

    async def image(self, name: str) -> Image:
        """Looks an image up once. Raises SandboxError if the engine has no image of that name."""
        looking = self._images.get(name)
        if looking is None:
            looking = self._images[name] = asyncio.create_task(self._look(name))
            looking.add_done_callback(lambda done: self._forget_failure(name, done))
        return await asyncio.shield(looking)

    async def start(self, plan: ContainerPlan) -> Container:
        """Starts a container with an empty workspace and waits for its agent. Cancelling leaves nothing."""
        # The engine's call cannot be interrupted, so a cancelled start runs to its end and is then undone.
        starting = asyncio.create_task(self._start(plan))
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            tidying = asyncio.create_task(self._undo(starting))
            self._tidying.add(tidying)
            tidying.add_done_callback(self._tidying.discard)
            await asyncio.shield(tidying)
            raise

    async def aclose(self) -> None:
        """Waits for running look-ups and clean-ups, then removes the containers that are left."""
        await asyncio.gather(*self._tidying, *self._images.values(), return_exceptions=True)
        await asyncio.gather(*map(self._clear, list(self._left)))

    async def pause(self, container: Container) -> None:
        """Freezes every process in it, even if the caller is cancelled meanwhile. Raises SandboxError."""
        await through(asyncio.create_task(self._pause(container)))

    async def _pause(self, container: Container) -> None:
        # Set before the engine is called: no timeout may expire while the processes are being frozen.
        container.agent.frozen = True
        try:
            await self._freeze(container.id)
        except SandboxError:
            container.agent.frozen = False
            raise
        container.paused = True

    async def resume(self, container: Container) -> None:
        """Unfreezes its processes, even if the caller is cancelled meanwhile. Raises SandboxError."""
        await through(asyncio.create_task(self._resume(container)))

    async def _resume(self, container: Container) -> None:
        await self._once(self._engine.client.unpause, container.id, "not paused")
        container.paused = container.agent.frozen = False

    async def remove(self, container: Container) -> None:
        """Kills its processes and removes it, even if the caller is cancelled meanwhile.

        Raises nothing but CancelledError. If the engine does not answer, the container still ends, and the
        next `reap` removes it.
        """
        await through(asyncio.create_task(self._remove(container)))

    async def _remove(self, container: Container) -> None:
        # A paused agent cannot answer; the engine's forced removal kills it.
        if not container.paused:
            with contextlib.suppress(SandboxError):
                await container.agent.end()
        container.close()
        await self._clear(container.id)
        await asyncio.to_thread(shutil.rmtree, container.folder, ignore_errors=True)

    async def reap(self) -> int:
        """Removes the containers of dead nodes with this workspace root, and our own that are left over.

        Returns how many belonged to dead nodes. Raises EngineError.
        """
        await asyncio.gather(*map(self._clear, list(self._left)))
        labels = {"label": [f"{ROOT_LABEL}={self._labels[ROOT_LABEL]}"]}
        containers = await self._engine.call(self._engine.client.containers, all=True, filters=labels)
        leases = {each["Id"]: (each.get("Labels") or {}).get(LEASE_LABEL) for each in containers}
        dead = [
            container_id
            for container_id, lease in leases.items()
            if lease is not None and is_abandoned(lease)
        ]
        await asyncio.gather(*map(self._discard, dead))
        return len(dead)

    async def _look(self, name: str) -> Image:
        client = self._engine.client
        try:
            attributes = await self._engine.call(client.inspect_image, name)
        except EngineError as error:
            if error.status != 404:
                raise
            raise ImageError(
                f"The image {name!r} is not on the Docker engine at {self._engine.host}. Get it with "
                f"`docker pull {name}`, or build it: `harnessgym images build` makes our own."
            ) from error
        config = attributes.get("Config") or {}
        env = tuple(
            (key, value) for key, _, value in (each.partition("=") for each in config.get("Env") or ())
        )
        folder = self._root / "accounts" / attributes["Id"].replace(":", "-")
        async with self._one_at_a_time:
            files = await self._engine.call(
                accounts, client, attributes["Id"], folder, self._user, HOME, self._labels
            )
        home = (config.get("Labels") or {}).get(HOME_LABEL, "")
        return Image(attributes["Id"], env, tuple(sorted(config.get("Volumes") or ())), home, files)

    def _forget_failure(self, name: str, done: asyncio.Task[Image]) -> None:
        if (done.cancelled() or done.exception() is not None) and self._images.get(name) is done:
            del self._images[name]

    async def _undo(self, starting: asyncio.Task[Container]) -> None:
        with contextlib.suppress(SandboxError):
            await self.remove(await starting)

    async def _start(self, plan: ContainerPlan) -> Container:
        folder = self._root / uuid.uuid4().hex
        container_id = f"harnessgym-{folder.name}"
        try:
            await asyncio.to_thread(folder.mkdir, 0o711)
            with contextlib.closing(AgentSocket(folder / "door")) as agent_socket:
                container_id = await self._create(plan, folder, container_id)
                await self._engine.call(self._engine.client.start, container_id)
                agent = await self._answered(agent_socket, container_id)
            try:
                return Container(container_id, plan, folder, agent, await agent.root())
            except BaseException:
                agent.close()
                raise
        except BaseException as error:
            await self._clear(container_id)
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
            if isinstance(error, OSError):
                raise SandboxError(
                    f"The folder of a sandbox, {folder}, could not be made: {error.strerror}."
                ) from error
            raise

    async def _answered(self, agent_socket: AgentSocket, container_id: str) -> AgentConnection:
        """Waits for the agent's connection. Raises SandboxError if the container ends or time is up."""
        deadline = asyncio.get_running_loop().time() + _START_S
        while True:
            try:
                agent = await agent_socket.answer(_LOOK_S)
                break
            except TimeoutError as error:
                if await self._runs(container_id) and asyncio.get_running_loop().time() < deadline:
                    continue
                raise SandboxError(
                    f"The agent in container {container_id[:12]} ended or did not connect. Does the engine "
                    f"run on "
                    "this machine, and see its files?"
                ) from error
        try:
            async with asyncio.timeout(_START_S):
                await agent.greeted
        except BaseException as error:
            agent.close()
            if isinstance(error, TimeoutError):
                raise SandboxError(
                    f"The agent in container {container_id[:12]} connected, and then said nothing."
                ) from error
            raise
        return agent

    async def _runs(self, container_id: str) -> bool:
        try:
            attributes = await self._engine.call(self._engine.client.inspect_container, container_id)
        except EngineError as error:
            if error.status == 404:
                return False
            raise
        return bool(attributes["State"]["Running"])

    async def _freeze(self, container_id: str) -> None:
        for pause_s in _FREEZE_AGAIN_S:
            try:
                return await self._once(self._engine.client.pause, container_id, "already paused")
            except EngineError as error:
                if _NOT_FROZEN not in str(error):
                    raise
            await asyncio.sleep(pause_s)
        return await self._once(self._engine.client.pause, container_id, "already paused")

    async def _once(self, do: Callable[[str], None], container_id: str, done: str) -> None:
        """Calls the engine for a change that only works once, such as pausing.

        A call is repeated if its answer was lost. `done` is the error that the engine gives for the repeat.
        """
        try:
            await self._engine.call(do, container_id)
        except EngineError as error:
            if done not in str(error):
                raise

    async def _create(self, plan: ContainerPlan, folder: Path, name: str) -> str:
        """Creates a container and returns its id."""
        client = self._engine.client
        binary = await asyncio.to_thread(agent_binary)
        host = client.create_host_config(**_host(plan, binary, folder))
        try:
            answer: Mapping[str, Any] = await self._engine.call(
                client.create_container,
                image=plan.image.id,
                name=name,
                entrypoint=[_AGENT],
                command=[f"{_SOCKET_FOLDER}/{SOCKET}", WORKSPACE, *plan.folders],
                user="0:0",
                working_dir="/",
                hostname="sandbox",
                labels=self._labels,
                healthcheck={"Test": ["NONE"]},
                stop_signal="SIGTERM",
                host_config=host,
            )
        except EngineError as error:
            if error.status == 404:
                # Somebody removed the image, and its name may stand for another one by now.
                self._images.clear()
                raise SandboxError(
                    f"The image {plan.image.id} was removed from the engine. Open the sandbox again."
                ) from error
            # 409: the name is taken, because an earlier call made the container and its answer was lost.
            if error.status != 409:
                raise
            answer = await self._engine.call(client.inspect_container, name)
        return str(answer["Id"])

    async def _clear(self, container_id: str) -> None:
        """Removes one of our containers, or remembers it for later if the engine fails."""
        try:
            await self._discard(container_id)
            self._left.discard(container_id)
        except EngineError as error:
            self._left.add(container_id)
            _log.warning("Container %s could not be removed yet: %s", container_id[:12], error)

    async def _discard(self, container_id: str) -> None:
        """Removes a container and waits until the engine no longer knows it. Raises EngineError."""
        try:
            await self._engine.call(self._engine.client.remove_container, container_id, v=True, force=True)
        except EngineError as error:
            if error.status == 404:
                return
            # 409: the engine is removing it already.
            if error.status != 409:
                raise
            await self._wait_removed(container_id)

    async def _wait_removed(self, container_id: str) -> None:
        deadline = asyncio.get_running_loop().time() + _REMOVAL_S
        pause_s = 0.01
        while asyncio.get_running_loop().time() < deadline:
            try:
                await self._engine.call(self._engine.client.inspect_container, container_id)
            except EngineError as error:
                if error.status == 404:
                    return
                raise
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, 0.25)
        raise EngineError(
            f"The Docker engine still removes container {container_id[:12]} after {_REMOVAL_S:.0f} s."
        )


def _host(plan: ContainerPlan, binary: Path, folder: Path) -> dict[str, Any]:
    """Returns the host configuration of a container. Its files are in memory and count against that limit."""
    types = sdk().types

    def bound(source: str, target: str) -> Any:
        """A read-only bind mount."""
        # Not recursive: mounts below the source would stay writable.
        mount = types.Mount(target, source, type="bind", read_only=True)
        return {**mount, "BindOptions": {"NonRecursive": True}}

    scratch = f"rw,exec,nosuid,nodev,mode=1777,size={plan.tmp_mb}m,nr_inodes=64k"
    owned = f"uid={plan.user},gid={plan.user}"
    tmpfs = dict.fromkeys(("/tmp", *plan.image.volumes), scratch)  # noqa: S108
    tmpfs[HOME] = f"rw,exec,nosuid,nodev,mode=0700,size={plan.tmp_mb}m,nr_inodes=64k,{owned}"
    disk = f"rw,exec,nosuid,nodev,size={plan.disk_mb}m,nr_inodes=1m,{owned}"
    tmpfs[WORKSPACE] = f"{disk},mode=0700"
    tmpfs |= dict.fromkeys(plan.folders, f"{disk},mode=0755")
    # Only the folder of the socket is mounted: the agent's connection is the one way in.
    mounts = [bound(str(binary), _AGENT), bound(str(folder / "door"), _SOCKET_FOLDER)]
    mounts += [bound(str(file), path) for file, path in plan.image.accounts]
    return {
        "network_mode": "none",
        "dns": ["127.0.0.1"],
        "read_only": True,
        "cap_drop": ["ALL"],
        "cap_add": list(_KEPT),
        "security_opt": ["no-new-privileges:true"],
        "ipc_mode": "private",
        "cgroupns": "private",
        "init": False,
        "pids_limit": plan.processes + _OWN_PROCESSES,
        "mem_limit": plan.memory_mb * _MIB,
        "memswap_limit": plan.memory_mb * _MIB,
        "nano_cpus": int(plan.cpus * 1e9),
        "shm_size": plan.tmp_mb * _MIB,
        "log_config": types.LogConfig(type="none"),
        "auto_remove": True,
        "tmpfs": tmpfs,
        "mounts": [*mounts, *(bound(path, path) for path in plan.readable)],
    }
