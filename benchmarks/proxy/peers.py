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
            pip = [
                str(self.folder / "bin/pip"),
                "install",
                "--quiet",
                "--disable-pip-version-check",
                self.requirement,
            ]
            for argv in ([_python(), "-m", "venv", str(self.folder)], pip):
                if subprocess.run(argv, check=False, stderr=subprocess.DEVNULL).returncode:
                    raise RuntimeError(
                        f"{' '.join(argv)} failed. Run it by hand to see why, or pass --without-peers."
                    )
            marker.write_text(self.requirement)
        return self.folder / "bin" / self.command


LITELLM = Peer("litellm", "litellm[proxy]==1.106.2", "litellm")
AGENT_LIGHTNING = Peer("agentlightning", "agentlightning==1.0.2", "agl-server")


def _python() -> str:
    """A Python 3.12, which both peers can use."""
    if sys.version_info[:2] == (3, 12):
        return sys.executable
    return str(find_python(os.environ.get("PATH", ""), Path.home()))


def find_python(search_path: str, home: Path) -> Path:
    """A Python 3.12 that runs, on the search path or of pyenv. Raises `RuntimeError` if there is none."""
    folders = (Path(folder) / "python3.12" for folder in search_path.split(os.pathsep))
    pyenv = sorted((home / ".pyenv/versions").glob("3.12.*/bin/python"), reverse=True)
    python = next((path for path in (*folders, *pyenv) if _runs(path)), None)
    if python is None:
        raise RuntimeError(
            "The peers need Python 3.12. Install it (`pyenv install 3.12`), or pass --without-peers."
        )
    return python


def _runs(python: Path) -> bool:
    """Whether it can be started and is what it is named. pyenv's shims also stand for versions that are
    not activated.
    """
    try:
        done = subprocess.run([python, "--version"], capture_output=True, text=True, check=False)
    except OSError:
        return False
    return done.returncode == 0 and done.stdout.startswith("Python 3.12.")
