"""Sandboxes: where a harness runs, what it can reach, and what is exported when it has ended.

A *backend* is opened once per node and holds what rollouts share: warmed interpreters and containers, the
relay to the proxy, the folder of workspaces. It opens one *sandbox* per rollout, and a fresh one for grading:

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
    """What a backend can guarantee. A task that needs a capability the backend lacks is refused."""

    NETWORK = "network"
    """Only the proxy can be reached."""
    FILES = "files"
    """Only the workspace and private scratch folders can be written; other sandboxes' cannot be read."""
    PROCESSES = "processes"
    """Other processes can be neither seen nor signalled, and `Limits.processes` is enforced."""
    PREWARM = "prewarm"
    """Python harnesses can run in a warmed interpreter that forks."""
    IMAGE = "image"
    """A task's container image can be used."""
    ROOT = "root"
    """Commands can be run as root."""
    SNAPSHOT = "snapshot"
    """The files of a sandbox can be saved, and several sandboxes started from them."""
    DISK = "disk"
    """`Limits.disk_mb` holds for everything that a sandbox's processes write, together."""
    MEMORY = "memory"
    """`Limits.memory_mb` holds for all processes of a sandbox together, not for each."""
    CPU = "cpu"
    """`Limits.cpus` holds."""
    PAUSE = "pause"
    """A sandbox can be stopped and continued, processes and all."""
    STATS = "stats"
    """The resource use of a running sandbox can be read."""
    HOSTS = "hosts"
    """A setup phase can be allowed to reach a list of hosts."""


CONTEXT = "context:"
"""Prefix of an image name that is followed by the folder to build it from."""


@dataclass(frozen=True, slots=True)
class InstallStep:
    """One command of an installation, run as root with an open network. Equal steps are cached."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Equipment:
    """The content of a fresh sandbox. Sandboxes of equal equipment share an image and a warm pool."""

    image: str = ""
    """Container image, or `context:FOLDER` to build one from a folder's Dockerfile. Empty means the backend's
    own. Needs `Capability.IMAGE`."""
    install: tuple[InstallStep, ...] = ()
    """Steps that install a harness into the image, as a cached layer. Backends without images ignore them:
    there the harness is installed on this machine and listed in `readable`."""
    readable: tuple[str, ...] = ()
    """Files and folders of this machine that are readable at the same paths."""
    home: str = ""
    """See `Task.home`. `@workdir` means the image's WORKDIR. `harnessgym.task_setup.workspace_setup` copies
    what the image has there into the workspace."""
    env: tuple[tuple[str, str], ...] = ()
    """Environment variables of every command. They override the image's; a command's own override them."""
    folders: tuple[str, ...] = ()
    """See `Task.folders`: absolute paths beside the workspace that are writable and empty. Needs
    `Capability.IMAGE`."""
    proxy: bool = True
    """Whether the proxy can be reached. Grading sandboxes reach nothing."""
    hidden: tuple[str, ...] = ()
    """Names, with wildcards, of what no sandbox shows of the packages that HarnessGym's own environment has
    (`harnessgym.provisioning.hidden_packages`). Images do not have them."""
    grades: bool = False
    """Whether its commands judge others' code. No process of such a sandbox can trace another, and a kernel
    with Landlock lets none write into another's memory."""


@dataclass(frozen=True, slots=True)
class Prewarm:
    """The warmed interpreter that a Python harness forks from. Harnesses with equal values share one."""

    warm: str = ""
    """`"openai"`, `"anthropic"`, `"module:function"`, or `""` for a plain interpreter."""
    python: str = ""
    """Interpreter with the harness installed; empty means the one that HarnessGym runs in."""


_SIGKILL = 9
_LAST = 4_096
"""Bytes at the end of a failed program's output that are searched for its reason."""
_NO_MEMORY = (b"MemoryError", b"Cannot allocate memory", b"bad_alloc", b"out of memory", b"OutOfMemory")
_WHOLE_S = 10.0
"""From this many on, seconds are shown without a fraction."""


@dataclass(frozen=True, slots=True)
class ExecResult:
    """How a command ended. Reaching a limit is a result, not an error."""

    exit_code: int | None
    """None if a signal ended it."""
    signal: int | None
    stdout: bytes
    stderr: bytes
    stdout_truncated: bool
    stderr_truncated: bool
    timed_out: bool
    wall_s: float
    cpu_s: float | None = None
    """CPU seconds of the command and everything it started, if the sandbox can tell."""

    @property
    def ok(self) -> bool:
        """Whether the command ended by itself with exit code 0."""
        return self.exit_code == 0 and not self.timed_out

    @property
    def out_of_memory(self) -> bool:
        """Whether a failed command seems to have run out of memory."""
        # A limit on a whole sandbox ends in SIGKILL; a limit on one process is an error that the program
        # reports.
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
"""Called with each chunk of output as it arrives, including chunks that are dropped later."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The files, not the processes, of a workspace at one moment. Its backend keeps it until it is closed."""

    backend: str
    id: str


@dataclass(frozen=True, slots=True)
class Stats:
    """A sandbox's present resource use."""

    memory_bytes: int
    processes: int
    cpu_s: float
    """CPU seconds since it was opened."""
    disk_bytes: int
    """Bytes of its workspace."""


@dataclass(frozen=True, slots=True)
class WorkspaceExport:
    """The result of exporting a workspace."""

    files: int
    size: int
    """Bytes."""
    left_out: tuple[str, ...]
    """Paths of what cannot be exported: devices, sockets, pipes, links out of the workspace."""
    overflow: str = ""
    """The exceeded bound, if any. The export is then incomplete."""


class Serving(Protocol):
    """A listener served by the node."""

    def close(self) -> None:
        """Close the listener and drop its connections."""
        ...


class Outside(Protocol):
    """What a command may reach instead of the proxy (`harnessgym.sandboxes.egress.Egress`)."""

    port: int
    """Loopback port on which the sandbox listens for it while the command runs."""

    @property
    def env(self) -> Mapping[str, str]:
        """Variables for the command's environment. The command's own override them."""
        ...

    async def serve(self, listener: socket.socket) -> Serving:
        """Take over the listener and serve it."""
        ...


class ExecOptions(TypedDict, total=False):
    """Keyword arguments of `Sandbox.exec`, for callers that pass them on."""

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
    """One rollout's sandbox. Paths are relative to the workspace; leaving it raises `SandboxError`."""

    capabilities: frozenset[Capability]
    proxy_url: str
    """The proxy's URL from inside the sandbox; empty if the backend was given none."""
    workspace: Path
    """The workspace on this machine. The harness wrote its content, so never follow links in it."""

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
        """Run a command. When this returns, every process it started is dead.

        `timeout_s` and `max_output` (bytes per stream; the last ones are kept) default to the sandbox's
        limits, `stdin` to nothing. `user="root"` needs `Capability.ROOT`. `readable` names files and folders
        of this machine that the command may read; a backend with images needs them already in its
        `Equipment`. With `prewarm`, `cmd` must be a Python command (`python program.py ...` or `python -m
        module ...`), which backends without `Capability.PREWARM` start cold. `outside` needs
        `Capability.HOSTS` and can be reached until the command has ended. Raises `SandboxError` if the
        sandbox, not the command, failed.
        """
        ...

    async def read(self, path: str) -> bytes:
        """Read a file. Raises `FileNotFoundError`, or `SandboxError` if it is not regular or too large."""
        ...

    async def write(self, path: str, data: bytes) -> None:
        """Write a file. Creates parent folders and replaces an existing file."""
        ...

    async def upload(self, local: Path, path: str) -> None:
        """Copy a file or folder of this machine into the workspace. Refuses links in it."""
        ...

    async def download(self, path: str, local: Path) -> None:
        """Copy a file or folder to `local`, which must not exist. Refuses links and special files."""
        ...

    async def export(
        self, local: Path, *, max_bytes: int, max_files: int, collect: Sequence[str] = ()
    ) -> WorkspaceExport:
        """Copy the workspace to the new folder `local`, safe against traps that its processes left.

        Exports regular files, folders, and links that stay inside; everything else is left out and listed.
        The node reads the files itself and follows no link; nothing in the sandbox takes part. `collect`
        names absolute paths below `Equipment.folders`. They go to `harnessgym.task.OUTSIDE` in `local`,
        within the same bounds; a file of that name in the workspace itself is left out. Raises `SandboxError`
        for a path below none of the folders.
        """
        ...

    async def kill_all(self) -> None:
        """Kill every process that commands started, all at once. Their files stay."""
        ...

    async def pause(self) -> None:
        """Freeze every process. Raises `CapabilityError` without `Capability.PAUSE`."""
        ...

    async def resume(self) -> None:
        """Continue the frozen processes."""
        ...

    async def stats(self) -> Stats:
        """The present resource use. Raises `CapabilityError` without `Capability.STATS`."""
        ...

    async def snapshot(self) -> Snapshot:
        """Save the workspace's files. Raises `CapabilityError` without `Capability.SNAPSHOT`."""
        ...

    async def fork(self, snapshot: Snapshot) -> "Sandbox":
        """Open another sandbox with the same equipment and limits and the files of a snapshot.

        Close it with `aclose`. This sandbox may already be closed. Raises `CapabilityError` without
        `Capability.SNAPSHOT`.
        """
        ...

    async def aclose(self) -> None:
        """Kill all processes and remove everything. May be called twice."""
        ...


PLAIN = Equipment()
"""The backend's own image without a harness; the proxy can be reached."""


class SandboxBackend(Protocol):
    """Opened once per node. Leaving its context ends every sandbox it opened."""

    capabilities: frozenset[Capability]

    @property
    def root(self) -> Path:
        """The node's own folder. If the node is killed, the next backend in the same place cleans it up.

        Raises `SandboxError` before the backend is opened.
        """
        ...

    @property
    def settings(self) -> type[BaseModel]:
        """Class of the settings that its constructor takes."""
        ...

    @staticmethod
    def unavailable() -> str | None:
        """None if it can be used on this machine, else the reason and a remedy."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def open(self, limits: Limits, equipment: Equipment = PLAIN) -> AbstractAsyncContextManager[Sandbox]:
        """Open a fresh sandbox with an empty workspace. Leaving the context kills and removes everything."""
        ...


def require(capabilities: frozenset[Capability], needed: frozenset[Capability]) -> None:
    """Raises `CapabilityError` naming the missing capabilities."""
    missing = sorted(needed - capabilities)
    if missing:
        offered = ", ".join(sorted(capabilities)) or "nothing"
        raise CapabilityError(
            f"The sandbox backend does not offer {', '.join(missing)} (it offers: {offered}). "
            "Choose another backend, or a task that does not need it."
        )


def needs(task: Task) -> frozenset[Capability]:
    """The capabilities that a task requires. Raises `CapabilityError` for one that does not exist."""
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
