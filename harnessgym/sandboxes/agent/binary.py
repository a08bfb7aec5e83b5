"""The agent as a program: compiled once on this machine, kept by the hash of its source."""

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

from harnessgym.errors import SandboxError

_SOURCE = Path(__file__).parent
_FLAGS = ("-std=gnu11", "-static", "-O2", "-s")
_COMPILERS = ("cc", "gcc", "clang", "musl-gcc")


def agent_binary(cache: Path | None = None) -> Path:
    """The static program, from `cache` (default: `~/.cache/harnessgym/agent`), else compiled there first.

    However many ask at a time, one compiles. Raises SandboxError that says what is missing.
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
    return next((found for name in names if name and (found := shutil.which(name))), None)


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
            f"(`apt-get install gcc libc6-dev`), or copy {program} from a machine that has made it."
        )
    with tempfile.TemporaryDirectory(dir=program.parent) as folder:
        made = Path(folder) / "agent"
        command = [used, *_FLAGS, "-o", str(made), *map(str, sorted(_SOURCE.glob("*.c")))]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SandboxError(
                f"{used} could not compile the sandbox agent. It needs a static C library and the kernel's "
                "headers "
                f"(`apt-get install libc6-dev linux-libc-dev`). It said: {done.stderr[-2000:].strip()}"
            )
        made.chmod(0o755)
        made.rename(program)
