"""The node's side of the agent in a container: compiles its program, packs and parses the packets.

The program is compiled once on this machine and cached by the hash of its source. The structs here mirror
those in `agent.h`.
"""

import fcntl
import hashlib
import os
import platform
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from harnessgym.errors import SandboxError

VERSION = 2
Operation = Literal["X", "R", "L", "K", "E"]
"""X: start a command. R: send a descriptor of a folder. L: open a listener. K: kill every process. E: kill
every process and exit."""
_REQUEST = struct.Struct("=3I")
_REPLY = struct.Struct("=2Ii")
_HEAD = struct.Struct("=6I3Q")
_REPORT = struct.Struct("=IiIIq")
_LENGTH = struct.Struct("=I")
_KINDS = {1: "exited", 2: "killed", 3: "lost", 4: "cancelled"}
REPLY_SIZE = _REPLY.size
REPORT_SIZE = _REPORT.size
HELLO = ord("H")


@dataclass(frozen=True, slots=True)
class ExecRequest:
    """One command, with its environment, folder, user and limits."""

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str
    user: int
    """User and group id."""
    timeout_s: float
    file_bytes: int = 0
    """Largest file; 0 leaves it unlimited."""
    programs: Sequence[str] = ()
    """Programs to try in order: the first that exists is started. If empty, `argv[0]`."""
    judges: bool = False
    """Whether the command may run code that must not trace it or change its memory."""


@dataclass(frozen=True, slots=True)
class AgentReply:
    """The answer to a request."""

    operation: int
    id: int
    error: int
    """errno; in the first packet the agent's version."""


@dataclass(frozen=True, slots=True)
class ExecReport:
    """How a command ended."""

    kind: str
    """`exited`; `killed` with all other processes; `lost`, because its supervisor was killed; `cancelled`
    before its request arrived."""
    code: int | None
    signal: int | None
    timed_out: bool
    cpu_s: float | None


def pack_request(operation: Operation, number: int, value: int = 0) -> bytes:
    """One control packet."""
    return _REQUEST.pack(ord(operation), number, value)


def parse_reply(packet: bytes) -> AgentReply:
    """One control packet of the agent."""
    return AgentReply(*_REPLY.unpack(packet))


def pack_order(order: ExecRequest) -> bytes:
    """The bytes to send on a command's channel. Raises SandboxError for a string with a NUL byte."""
    programs = order.programs or order.argv[:1]
    variables = [f"{name}={value}" for name, value in order.env.items()]
    body = b"".join(_string(each) for each in (order.cwd, *programs, *order.argv, *variables))
    numbers = (
        len(programs),
        len(order.argv),
        len(variables),
        max(1, round(order.timeout_s * 1000)),
        order.file_bytes,
        int(order.judges),
    )
    return _HEAD.pack(len(body), order.user, order.user, *numbers) + body


def parse_report(data: bytes) -> ExecReport:
    """What the agent wrote to a channel."""
    kind, status, timed_out, _, cpu_us = _REPORT.unpack(data)
    code: int | None = None
    if kind == 1:
        code = os.waitstatus_to_exitcode(status)
    elif kind == 2:
        code = -9
    name = _KINDS.get(kind, "lost")
    exited, signal = (code, None) if code is None or code >= 0 else (None, -code)
    return ExecReport(name, exited, signal, bool(timed_out), None if cpu_us < 0 else cpu_us / 1e6)


def _string(text: str) -> bytes:
    data = os.fsencode(text)
    if b"\0" in data:
        raise SandboxError(
            "A command's argument, folder or variable contains a NUL byte, which no process can be given: "
            f"{text[:80]!r}."
        )
    return _LENGTH.pack(len(data) + 1) + data + b"\0"


_SOURCE = Path(__file__).parent
_FLAGS = ("-std=gnu11", "-static", "-O2", "-s")
_COMPILERS = ("cc", "gcc", "clang", "musl-gcc")


def agent_binary(cache: Path | None = None) -> Path:
    """Path of the agent's static program in `cache` (default: `~/.cache/harnessgym/agent`).

    Compiles it if missing.

    A file lock makes concurrent callers compile it once. Raises SandboxError if it cannot be compiled.
    """
    folder = cache or Path.home() / ".cache" / "harnessgym" / "agent"
    program = folder / f"agent-{_fingerprint()}"
    if program.exists():
        return program
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            _compile(program)
    finally:
        os.close(lock)
    return program


def compiler() -> str | None:
    """The C compiler that would be used: `CC`, else the first that is installed; None if there is none."""
    names = (os.environ.get("CC", ""), *_COMPILERS)
    return next((path for name in names if name and (path := shutil.which(name))), None)


def _fingerprint() -> str:
    digest = hashlib.sha256(f"{platform.machine()} {_FLAGS}".encode())
    for path in sorted((*_SOURCE.glob("*.c"), *_SOURCE.glob("*.h"))):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:20]


def _compile(program: Path) -> None:
    used = compiler()
    if used is None:
        raise SandboxError(
            "The sandbox agent must be compiled once, and this machine has no C compiler. Install one "
            f"(`apt-get install gcc libc6-dev`), or copy {program} from a machine that compiled it."
        )
    with tempfile.TemporaryDirectory(dir=program.parent) as folder:
        made = Path(folder) / "agent"
        command = [used, *_FLAGS, "-o", str(made), *map(str, sorted(_SOURCE.glob("*.c")))]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SandboxError(
                f"{used} could not compile the sandbox agent. It needs a static C library and the kernel's "
                "headers (`apt-get install libc6-dev linux-libc-dev`). The compiler's output: "
                f"{done.stderr[-2000:].strip()}"
            )
        made.chmod(0o755)
        made.rename(program)
