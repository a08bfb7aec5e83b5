"""The process backend: plain processes, for trusted harnesses and machines without a better backend.

It isolates nothing: a harness can read what its user can read, reach what its user can reach, and see other
rollouts. It does give each rollout a folder, limits per process and bounded output, and at the end it kills
double-forked children too.
"""

import logging
import os
import sys
from pathlib import Path
from typing import Self

from harnessgym.sandbox import Capability, Prewarm
from harnessgym.sandboxes.forking import Spec
from harnessgym.sandboxes.local import LocalBackend, LocalSettings
from harnessgym.sandboxes.local_sandbox import SandboxPaths

_log = logging.getLogger(__name__)
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class ProcessSettings(LocalSettings):
    """Settings of the `process` backend."""

    proxy_url: str = ""
    """The proxy's address, such as `http://127.0.0.1:8100`. This backend has no relay."""


class ProcessBackend(LocalBackend):
    """Runs rollouts as ordinary child processes of this user."""

    name = "process"
    settings = ProcessSettings
    capabilities = frozenset({Capability.PREWARM, Capability.SNAPSHOT, Capability.STATS})

    def __init__(self, settings: ProcessSettings | None = None) -> None:
        settings = settings or ProcessSettings()
        super().__init__(settings)
        self.proxy_url = settings.proxy_url

    async def __aenter__(self) -> Self:
        _log.warning(
            "The process sandbox isolates nothing: harnesses run as this user, with its files and its "
            "network. Use the bubblewrap or docker sandbox for anything that is not trusted."
        )
        return await super().__aenter__()

    @staticmethod
    def unavailable() -> str | None:
        """Always returns None: every machine has processes."""
        return None

    def furnish(self, folder: Path) -> None:
        """Makes a workspace, a home and a folder for temporary files."""
        super().furnish(folder)
        (folder / "home").mkdir()
        (folder / "tmp").mkdir()

    def place(self, folder: Path) -> SandboxPaths:
        """The real paths."""
        path = f"{Path(sys.prefix) / 'bin'}:{os.environ.get('PATH', _SYSTEM_PATH)}"
        env = {"PATH": path, "HOME": str(folder / "home"), "TMPDIR": str(folder / "tmp"), "LANG": "C.UTF-8"}
        return SandboxPaths(str(folder / "workspace"), env)

    def spec(self, prewarm: Prewarm, readable: tuple[str, ...]) -> Spec:  # noqa: ARG002
        """Starts the interpreter itself, with a small environment, because every fork can read it."""
        env = (("PATH", os.environ.get("PATH", _SYSTEM_PATH)), ("LANG", "C.UTF-8"))
        warmers = (prewarm.warm,) if prewarm.warm else ()
        return Spec(prewarm.python or sys.executable, warmers, (), env, namespaces=False)
