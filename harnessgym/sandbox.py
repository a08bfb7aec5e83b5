"""Sandboxes: where a harness runs, what it can reach there, and what is left when it has ended.

A *backend* is opened once per node and holds what rollouts share: warmed interpreters, the relay to the proxy, the folder
that workspaces live in. It opens one *sandbox* per rollout:

    async with Bubblewrap(BubblewrapSettings(proxy_socket_dir=run / "proxy")) as backend:
        async with backend.open(task.limits) as sandbox:
            await sandbox.write("instruction.txt", task.instruction.encode())
            result = await sandbox.exec(["python", "agent.py"], env={"OPENAI_BASE_URL": f"{sandbox.proxy_url}/v1"})

Members live in `sandboxes/` and are named by strings such as `"harnessgym.sandboxes.bubblewrap:Bubblewrap"`.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

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
    """A sandbox can be copied and continued several times."""


@dataclass(frozen=True, slots=True)
class Prewarm:
    """Which warmed interpreter a Python harness forks from. Harnesses with equal values share one."""

    warm: str = ""
    """`"openai"`, `"anthropic"`, `"module:function"`, or `""` for a plain interpreter."""
    python: str = ""
    """Interpreter that has the harness installed; empty is the one HarnessGym runs in."""


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


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A sandbox's state, kept by the backend that made it."""

    backend: str
    id: str


class Sandbox(Protocol):
    """One rollout's own place. Paths are relative to the workspace; leaving it by any trick raises SandboxError."""

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
    ) -> ExecResult:
        """Runs one command and everything it starts; when this returns, all of it is dead.

        `timeout_s` and `max_output` (bytes per stream) default to the sandbox's limits, `stdin` to nothing. `readable`
        names files and folders of this machine that the command may read. With `prewarm`, `cmd` must be a Python command
        (`python program.py ...` or `python -m module ...`). Raises SandboxError when the sandbox, not the command, failed.
        """
        ...

    async def read(self, path: str) -> bytes:
        """Raises FileNotFoundError when it does not exist, SandboxError when it is no regular file or too large."""
        ...

    async def write(self, path: str, data: bytes) -> None:
        """Makes parent folders as needed; replaces what is there."""
        ...

    async def upload(self, local: Path, path: str) -> None:
        """Copies a file or folder of this machine into the workspace. Links in it are refused."""
        ...

    async def download(self, path: str, local: Path) -> None:
        """Copies a file or folder out of the workspace; `local` must not exist. Links and special files are refused."""
        ...

    async def snapshot(self) -> Snapshot:
        """Raises CapabilityError without `Capability.SNAPSHOT`."""
        ...

    async def fork(self, snapshot: Snapshot) -> "Sandbox":
        """Raises CapabilityError without `Capability.SNAPSHOT`."""
        ...


class SandboxBackend(Protocol):
    """What a node opens once. Leaving it ends every sandbox it opened."""

    capabilities: frozenset[Capability]

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

    def open(self, limits: Limits) -> AbstractAsyncContextManager[Sandbox]:
        """A fresh, empty sandbox; leaving the context kills what runs in it and removes it."""
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
    """The capabilities without which a task makes no sense."""
    return frozenset({Capability.IMAGE}) if task.image else frozenset()
