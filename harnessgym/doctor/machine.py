"""Checks of the machine: memory, disk, limits, namespaces."""

import os
import resource
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from harnessgym.doctor.finding import DoctorFinding, found

_MEMORY = 4 << 30
_DISK = 5 << 30
_FILES = 4_096
_PROCESSES = 2_048
_REFUSALS = {"kernel.unprivileged_userns_clone": 0, "kernel.apparmor_restrict_unprivileged_userns": 1}
"""Kernel settings and the values that deny user namespaces to everyone but root."""


def machine() -> Iterator[DoctorFinding]:
    """Checks the resources that rollouts and training need."""
    yield _enough(
        "memory",
        _available(),
        _MEMORY,
        "available",
        "End what else runs, or run fewer rollouts: node.max_running.",
    )
    for name, folder in (
        ("disk here", Path.cwd()),
        ("disk for temporary files", Path(tempfile.gettempdir())),
    ):
        free = shutil.disk_usage(folder).free
        yield _enough(
            name, free, _DISK, f"free on the disk of {folder}", "Free some, or run in another folder."
        )
    yield _limit("open files", resource.RLIMIT_NOFILE, _FILES, "ulimit -n")
    yield _limit("processes", resource.RLIMIT_NPROC, _PROCESSES, "ulimit -u")
    yield _namespaces()


def _available() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1_024
    return 0


def _enough(name: str, there: int, wanted: int, what: str, remedy: str) -> DoctorFinding:
    detail = f"{there / 2**30:.1f} GiB {what}"
    problem = None if there >= wanted else f"{detail}; {wanted / 2**30:.0f} GiB are wanted"
    return found("machine", name, problem, detail, remedy)


def _limit(name: str, kind: int, wanted: int, command: str) -> DoctorFinding:
    soft, _ = resource.getrlimit(kind)
    unlimited = soft == resource.RLIM_INFINITY
    problem = None if unlimited or soft >= wanted else f"{soft:,} at most"
    return found("machine", name, problem, "unlimited" if unlimited else f"{soft:,}", f"{command} {wanted}")


def _namespaces() -> DoctorFinding:
    # Two independent refusals: a limit of 0 holds for everyone, the settings only for users other than root.
    name = "user namespaces"
    at_most = _number("/proc/sys/user/max_user_namespaces")
    if at_most == 0:
        return found("machine", name, "this machine makes none", "", "sysctl user.max_user_namespaces=10000")
    for setting, refusing in _REFUSALS.items():
        if _number(f"/proc/sys/{setting.replace('.', '/')}") == refusing and os.geteuid() != 0:
            problem = f"not for this user ({setting}={refusing})"
            return found("machine", name, problem, "", f"sysctl {setting}={1 - refusing}")
    return found("machine", name, None, f"{at_most:,} at most" if at_most is not None else "there")


def _number(path: str) -> int | None:
    try:
        return int(Path(path).read_text())
    except (OSError, ValueError):
        return None
