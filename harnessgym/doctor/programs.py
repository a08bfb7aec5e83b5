"""Checks of the programs and packages that HarnessGym uses."""

import shutil
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from harnessgym.doctor.finding import DoctorFinding, found
from harnessgym.harnesses.installation import installed
from harnessgym.harnesses.program import ProgramConfig
from harnessgym.registry import load, names
from harnessgym.sandboxes.agent.binary import compiler
from harnessgym.sandboxes.bubblewrap import bubblewrap_available
from harnessgym.sandboxes.images.bootstrap import debootstrap_available

_NEEDED = {
    "torch": "train",
    "safetensors": "train",
    "tokenizers": "proxy",
    "starlette": "proxy",
    "uvicorn": "proxy",
}
_FURTHER = {
    "openai": "examples", "anthropic": "examples", "gymnasium": "envs", "docker": "docker", "fastapi": "node", "psutil": "node",
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
