"""Compiles the preloaded library for clock jumps and full disks with this machine's compiler."""

import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

from harnessgym.errors import SandboxError

SOURCE = Path(__file__).parent / "fault.c"
CLOCK = "HARNESSGYM_FAULT_CLOCK"
DISK = "HARNESSGYM_FAULT_DISK"
_FLAGS = ("-shared", "-fPIC", "-O2", "-nostdlib")
"""No C library is linked in, because programs in images may use another one."""


@functools.cache
def library() -> bytes:
    """The library's bytes, compiled once per process. Raises SandboxError if that fails."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise SandboxError(
            "Clock jumps and full disks need a C compiler on this machine. Install one (`apt-get install "
            "gcc`)."
        )
    with tempfile.TemporaryDirectory(prefix="harnessgym-fault-") as folder:
        target = Path(folder) / "fault.so"
        done = subprocess.run(
            [compiler, *_FLAGS, "-o", target, SOURCE], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SandboxError(f"{compiler} cannot compile {SOURCE.name}: {done.stderr[-2000:].strip()}")
        return target.read_bytes()
