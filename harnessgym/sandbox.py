"""Sandboxes: where a harness runs, what it can reach there, and what is left when it has ended.

A *backend* is opened once per node and holds what rollouts share: warmed interpreters and containers, the
relay to the proxy, the folder that workspaces live in. It opens one *sandbox* per rollout, and a fresh one to
grade in:

    async with Bubblewrap(BubblewrapSettings(proxy_socket_dir=run / "proxy")) as backend:
        async with backend.open(task.limits, Equipment(readable=("agent.py",))) as sandbox:
            await sandbox.write("instruction.txt", task.instruction.encode())
            result = await sandbox.exec(["python", "agent.py"], env={"OPENAI_BASE_URL":
            f"{sandbox.proxy_url}/v1"})

Members live in `sandboxes/` and are named by strings such as `"harnessgym.sandboxes.bubblewrap:Bubblewrap"`.
"""

import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Literal, Protocol, Self, TypedDict

from pydantic import BaseModel

from harnessgym.errors import CapabilityError
from harnessgym.task import Limits, Task


class Capability(StrEnum):
    """What a backend can promise. A task that needs one the backend lacks is refused, never weakened."""

    NETWORK = "network"
    """Nothing but the proxy can be reached."""
    FILES = "files"
    """Only the workspace and private scratch folders can be written, and siblings' cannot be read."""
    PROCESSES = "processes"
    """Other processes can be neither seen nor signalled, and `Limits.processes` is enforced."""
    PREWARM = "prewarm"
    """Python harnesses can run in a warmed interpreter that forks."""
    IMAGE = "image"
    """A task's container image can be used."""
    ROOT = "root"
    """Commands can be run as root."""
    SNAPSHOT = "snapshot"
    """The files of a sandbox can be kept and continued from several times."""
    DISK = "disk"
    """`Limits.disk_mb` holds for all that a sandbox's processes write, together."""
    MEMORY = "memory"
    """`Limits.memory_mb` holds for all processes of a sandbox together, not for each."""
    CPU = "cpu"
    """`Limits.cpus` holds."""
    PAUSE = "pause"
    """A sandbox can be stopped and continued, processes and all."""
    STATS = "stats"
    """What a sandbox uses can be asked while it runs."""
    HOSTS = "hosts"
    """A setup phase can be given a list of hosts that it may reach."""


CONTEXT = "context:"
"""What the name of an image begins with that is built from the folder named behind it."""


@dataclass(frozen=True, slots=True)
class InstallStep:
    """One command of an installation, run as root while the network is open; equal steps are cached."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Equipment:
    """What is there before anything is written into a sandbox. Sandboxes of equal equipment share an image
    and a warm pool.
    """

    image: str = ""
    """Container image, or `context:FOLDER` for the one that a folder's Dockerfile makes; empty is the
    backend's own. Needs `Capability.IMAGE`."""
    install: tuple[InstallStep, ...] = ()
    """Steps that put a harness into the image, as a cached layer. Backends without images ignore them:
    there, the harness is installed on this machine and named by `readable`."""
    readable: tuple[str, ...] = ()
    """Files and folders of this machine that may be read at the same paths."""
    home: str = ""
    """See `Task.home`; `@workdir` is the image's WORKDIR. What the image has there,
    `harnessgym.task_setup.workspace_setup` lays."""
    env: tuple[tuple[str, str], ...] = ()
    """Environment variables of every command, over the image's; a command's own come over them."""
    folders: tuple[str, ...] = ()
    """See `Task.folders`: absolute paths beside the workspace that are writable and empty. Needs
    `Capability.IMAGE`."""
    proxy: bool = True
    """Whether the proxy can be reached. What grades reaches nothing."""


@dataclass(frozen=True, slots=True)
class Prewarm:
    """Which warmed interpreter a Python harness forks from. Harnesses with equal values share one."""

    warm: str = ""
    """`"openai"`, `"anthropic"`, `"module:function"`, or `""` for a plain interpreter."""
    python: str = ""
    """Interpreter that has the harness installed; empty is the one HarnessGym runs in."""


_SIGKILL = 9
_LAST = 4_096
"""Bytes at the end of a failed program's output in which it is taken to have said why."""
_NO_MEMORY = (b"MemoryError", b"Cannot allocate memory", b"bad_alloc", b"out of memory", b"OutOfMemory")
_WHOLE_S = 10.0
"""From here on seconds are shown without a fraction."""


@dataclass(frozen=True, slots=True)
class ExecResult:
    """How a command ended. Reaching a limit is a result, not an error."""

    exit_code: int | None
    """None when a signal ended it."""
    signal: int | None
    stdout: bytes
    stderr: bytes
    stdout_truncated: bool
    stderr_truncated: bool
    timed_out: bool
    wall_s: float
    cpu_s: float | None = None
    """Processor time of the command and everything it started, where the sandbox can tell."""

    @property
    def ok(self) -> bool:
        """Whether the command ended by itself with exit code 0."""
        return self.exit_code == 0 and not self.timed_out

    @property
    def out_of_memory(self) -> bool:
        """Whether a command that failed seems to have had too little memory."""
        # A limit on a whole sandbox ends in SIGKILL; a limit on one process is an error that the program reports.
        last = self.stderr[-_LAST:] + self.stdout[-_LAST:]
        return not self.ok and (self.signal == _SIGKILL or any(words in last for words in _NO_MEMORY))

    @property
    def ending(self) -> str:
        """How the command ended: `exit status 1`, `killed by signal 9`, `timed out after 60 s`."""
        if self.timed_out:
            return f"timed out after {self.wall_s:.{0 if self.wall_s >= _WHOLE_S else 1}f} s"
        if self.signal is not None:
            return f"killed by signal {self.signal}"
        return f"exit status {self.exit_code}" + (" (out of memory)" if self.out_of_memory else "")

    def last_output(self, most: int = 1_000) -> str:
        """The last bytes of stderr, or of stdout if stderr is empty; `no output` if both are."""
        return (self.stderr or self.stdout)[-most:].decode(errors="replace").strip() or "no output"

    def describe(self, most: int = 1_000) -> str:
        """How the command ended and the last bytes of its output: `exit status 1: No such file`."""
        return f"{self.ending}: {self.last_output(most)}"


OnOutput = Callable[[Literal["stdout", "stderr"], bytes], None]
"""Called with every piece of output as it comes, dropped ones too."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The files of a workspace at one moment, kept by the backend that made it until it is closed. No
    processes.
    """

    backend: str
    id: str


@dataclass(frozen=True, slots=True)
class Stats:
    """What a sandbox uses at this moment."""

    memory_bytes: int
    processes: int
    cpu_s: float
    """Processor time since it was opened."""
    disk_bytes: int
    """Bytes of its workspace."""


@dataclass(frozen=True, slots=True)
class WorkspaceExport:
    """What came out of a workspace as data."""

    files: int
    size: int
    """Bytes."""
    left_out: tuple[str, ...]
    """Paths of what cannot be data: devices, sockets, pipes, links that lead out of the workspace."""
    overflow: str = ""
    """Which bound was passed, if one was: what came out is then not all."""


class Serving(Protocol):
    """A listener that the node serves."""

    def close(self) -> None:
        """Closes the listener and drops what is connected."""
        ...


class Outside(Protocol):
    """What one command may reach instead of the proxy (`harnessgym.sandboxes.egress.Egress`)."""

    port: int
    """Loopback port on which the sandbox opens a listener for it while the command runs."""

    @property
    def env(self) -> Mapping[str, str]:
        """Added to the command's environment, below its own."""
        ...

    async def serve(self, listener: socket.socket) -> Serving:
        """Takes the listener over."""
        ...


class ExecOptions(TypedDict, total=False):
    """What `Sandbox.exec` takes beside the command, for what passes it on."""

    env: Mapping[str, str] | None
    cwd: str
    user: str | None
    stdin: bytes | None
    timeout_s: float | None
    max_output: int | None
    prewarm: Prewarm | None
    readable: Sequence[str]
    on_output: OnOutput | None
    outside: Outside | None


class Sandbox(Protocol):
    """One rollout's own place. Paths are relative to the workspace; leaving it by any trick raises
    SandboxError.
    """

    capabilities: frozenset[Capability]
    proxy_url: str
    """Where the harness finds the proxy, seen from inside; empty when the backend was given none."""
    workspace: Path
    """The workspace on this machine. What lies in it was written by the harness: never follow its links."""

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
        on_output: OnOutput | None = None,
        outside: Outside | None = None,
    ) -> ExecResult:
        """Runs one command and everything it starts; when this returns, all of it is dead.

        `timeout_s` and `max_output` (bytes per stream, of which the last are kept) default to the sandbox's
        limits, `stdin` to nothing. `user="root"` needs `Capability.ROOT`. `readable` names files and folders
        of this machine that the command may read; a backend with images needs them in its `Equipment`
        already. With `prewarm`, `cmd` must be a Python command (`python program.py ...` or `python -m module
        ...`), which backends without `Capability.PREWARM` start cold. `outside` needs `Capability.HOSTS`; it
        is in reach until the command has ended. Raises SandboxError when the sandbox, not the command,
        failed.
        """
        ...

    async def read(self, path: str) -> bytes:
        """Raises FileNotFoundError when it does not exist, SandboxError when it is no regular file or too
        large.
        """
        ...

    async def write(self, path: str, data: bytes) -> None:
        """Makes parent folders as needed; replaces what is there."""
        ...

    async def upload(self, local: Path, path: str) -> None:
        """Copies a file or folder of this machine into the workspace. Links in it are refused."""
        ...

    async def download(self, path: str, local: Path) -> None:
        """Copies a file or folder out of the workspace; `local` must not exist. Links and special files
        are refused.
        """
        ...

    async def export(
        self, local: Path, *, max_bytes: int, max_files: int, collect: Sequence[str] = ()
    ) -> WorkspaceExport:
        """Copies the workspace to the new folder `local` as data, whatever its processes left as traps.

        Regular files, folders, and links that stay inside come out; the rest is left out and named. Nothing
        in the sandbox takes part: the node reads the files itself, following no link. `collect` names
        absolute paths below `Equipment.folders`; files and folders there go to `harnessgym.task.OUTSIDE` in
        `local`, within the same bounds, and what the workspace itself has of that name is left out. Raises
        SandboxError for a path that lies in none of them.
        """
        ...

    async def kill_all(self) -> None:
        """Kills every process that commands started, all at once. What they wrote stays."""
        ...

    async def pause(self) -> None:
        """Stops every process where it is. Raises CapabilityError without `Capability.PAUSE`."""
        ...

    async def resume(self) -> None:
        """Lets them go on."""
        ...

    async def stats(self) -> Stats:
        """Raises CapabilityError without `Capability.STATS`."""
        ...

    async def snapshot(self) -> Snapshot:
        """Keeps the workspace's files as they are. Raises CapabilityError without `Capability.SNAPSHOT`."""
        ...

    async def fork(self, snapshot: Snapshot) -> "Sandbox":
        """A further sandbox of the same equipment and limits with these files in its workspace; close it with
        `aclose`.

        This one may be closed already. Raises CapabilityError without `Capability.SNAPSHOT`.
        """
        ...

    async def aclose(self) -> None:
        """Kills what runs and removes everything. May be called twice."""
        ...


PLAIN = Equipment()
"""The backend's own image, no harness, the proxy in reach."""


class SandboxBackend(Protocol):
    """What a node opens once. Leaving it ends every sandbox it opened."""

    capabilities: frozenset[Capability]

    @property
    def root(self) -> Path:
        """The node's own folder. What is left in it when the node is killed, the next one removes that opens
        the same place.

        Raises SandboxError before the backend is opened.
        """
        ...

    @property
    def settings(self) -> type[BaseModel]:
        """What its constructor takes."""
        ...

    @staticmethod
    def unavailable() -> str | None:
        """None if it can be used on this machine, else why not and what to do."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def open(self, limits: Limits, equipment: Equipment = PLAIN) -> AbstractAsyncContextManager[Sandbox]:
        """A fresh sandbox with an empty workspace; leaving the context kills what runs in it and removes
        it.
        """
        ...


def require(capabilities: frozenset[Capability], needed: frozenset[Capability]) -> None:
    """Raises CapabilityError naming what is missing."""
    missing = sorted(needed - capabilities)
    if missing:
        offered = ", ".join(sorted(capabilities)) or "nothing"
        raise CapabilityError(
            f"The sandbox backend does not offer {', '.join(missing)} (it offers: {offered}). "
            "Choose another backend, or a task that does not need it."
        )


def needs(task: Task) -> frozenset[Capability]:
    """The capabilities without which a task makes no sense. Raises CapabilityError for one that does not
    exist.
    """
    unknown = sorted(task.needs - set(Capability))
    if unknown:
        known = ", ".join(sorted(Capability))
        raise CapabilityError(
            f"Task {task.id!r} needs {', '.join(unknown)}, which no sandbox knows (known: {known})."
        )
    asked = {Capability(name) for name in task.needs}
    setups = (task.setup, *(step.setup for step in task.steps))
    implied = {
        Capability.IMAGE: task.image is not None or bool(task.home or task.folders or task.env),
        Capability.ROOT: bool(task.home),
        Capability.HOSTS: any(setup.hosts for setup in setups),
    }
    return frozenset(asked | {name for name, there in implied.items() if there})
