"""The preloaded library behind clock jumps and full disks, compiled once by this machine's compiler."""

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
"""Without a C library of its own: it is loaded into programs of images that have another one."""


@functools.cache
def library() -> bytes:
    """Its bytes. Raises SandboxError when there is no compiler, or it fails."""
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
