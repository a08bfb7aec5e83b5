"""Other proxies, at pinned versions, each in an environment of its own that is made on first use."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

_CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "harnessgym"


@dataclass(frozen=True, slots=True)
class Peer:
    """A package of the Python package index."""

    name: str
    requirement: str
    command: str
    """What of it is started."""

    @property
    def folder(self) -> Path:
        """Its environment."""
        return _CACHE / f"bench-{self.name}" / "venv"

    def install(self) -> Path:
        """The path of its command. Raises `RuntimeError` when it cannot be installed."""
        marker = self.folder.parent / "installed"
        if not marker.exists() or marker.read_text() != self.requirement:
            print(f"Installing {self.requirement} into {self.folder} (once) ...", flush=True)
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            pip = [str(self.folder / "bin/pip"), "install", "--quiet", "--disable-pip-version-check", self.requirement]
            for argv in ([_python(), "-m", "venv", str(self.folder)], pip):
                if subprocess.run(argv, check=False, stderr=subprocess.DEVNULL).returncode:
                    raise RuntimeError(f"{' '.join(argv)} failed. Run it by hand to see why, or pass --without-peers.")
            marker.write_text(self.requirement)
        return self.folder / "bin" / self.command


LITELLM = Peer("litellm", "litellm[proxy]==1.106.2", "litellm")
AGENT_LIGHTNING = Peer("agentlightning", "agentlightning==1.0.2", "agl-server")


def _python() -> str:
    """A Python 3.12, which both peers can use."""
    if sys.version_info[:2] == (3, 12):
        return sys.executable
    found = shutil.which("python3.12")
    pyenv = sorted((Path.home() / ".pyenv/versions").glob("3.12.*/bin/python"))
    if found is None and not pyenv:
        raise RuntimeError("The peers need Python 3.12. Install it (`pyenv install 3.12`), or pass --without-peers.")
    return found or str(pyenv[-1])
