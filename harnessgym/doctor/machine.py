"""Checks of the machine: memory, disk, limits, namespaces, and the programs and packages that HarnessGym
uses.
"""

import os
import resource
import shutil
import tempfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from harnessgym.doctor.finding import DoctorFinding, found
from harnessgym.harnesses.installation import installed
from harnessgym.harnesses.program import ProgramConfig
from harnessgym.registry import load, names
from harnessgym.sandboxes.agent.wire import compiler
from harnessgym.sandboxes.bubblewrap import bubblewrap_available
from harnessgym.sandboxes.images.bootstrap import debootstrap_available

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


_NEEDED = {
    "torch": "train",
    "safetensors": "train",
    "tokenizers": "proxy",
    "starlette": "proxy",
    "uvicorn": "proxy",
}
_FURTHER = {
    "openai": "examples", "anthropic": "examples", "gymnasium": "envs", "docker": "docker",
    "fastapi": "node", "psutil": "node", "transformers": "models",
    "psycopg": "postgres", "pyarrow": "export", "litellm": "litellm",
}  # fmt: skip
"""Packages that show whether an extra is installed."""


def packages() -> Iterator[DoctorFinding]:
    """Checks the Python packages of every extra."""
    for package, extra in {**_NEEDED, **_FURTHER}.items():
        try:
            problem = None
            there = version(package)
        except PackageNotFoundError:
            problem = f"not installed; the extra `{extra}` brings it"
            there = ""
        yield found(
            "python",
            package,
            problem,
            there,
            f"pip install 'harnessgym-rl[{extra}]'",
            needed=package in _NEEDED,
        )


def tools() -> Iterator[DoctorFinding]:
    """Checks the system's programs that sandboxes and stores use."""
    yield found(
        "sandboxes", "bubblewrap", bubblewrap_available(), "usable", "apt-get install bubblewrap", needed=True
    )
    c = compiler()
    server = _postgres()
    problem = None if c else "none: the program that runs commands in containers cannot be made here"
    yield found("sandboxes", "C compiler", problem, c or "", "apt-get install gcc libc6-dev")
    yield found("images", "debootstrap", debootstrap_available(), "there", "apt-get install debootstrap")
    problem = None if server else "no server on this machine; SQLite, the default, needs none"
    remedy = 'apt-get install postgresql, or name one elsewhere: store.url = "postgresql+psycopg://..."'
    yield found("store", "PostgreSQL", problem, server or "", remedy)


def agents() -> Iterator[DoctorFinding]:
    """Checks the harness programs installed on this machine, for sandboxes without images."""
    folder = Path(ProgramConfig().folder)
    for name in names("harness"):
        factory = load("harness", name)
        if issubclass(factory.settings, ProgramConfig):
            there = installed(factory(factory.settings()).install(), folder)
            problem = None if there else "not installed on this machine; images bring their own"
            yield found("agents", name, problem, f"installed in {folder}", f"harnessgym install {name}")


def _postgres() -> str | None:
    return next(
        map(str, sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), reverse=True)),
        shutil.which("postgres"),
    )
