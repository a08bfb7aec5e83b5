"""Harbor task directories (schema 1.4) as they are: one, or a folder of them.

    fix-it/
      instruction.md    task.toml
      environment/      Dockerfile, or docker-compose.yaml with the one service `main`
      tests/            test.sh writes /logs/verifier/reward.txt or reward.json; a Dockerfile is for grading
      solution/         solve.sh
      steps/NAME/       the same for each step, if there are several

Harbor runs tests in the agent's container, unless a task says otherwise. Here every task is tested in a fresh
container with only the files that the agent left in its working folder. `harbor_shared@PATH` tests as Harbor
does.
"""

import tomllib
from functools import partial
from pathlib import Path
from typing import Any

from harnessgym.tasks.format import LoadedTasks, read_folders
from harnessgym.tasks.harbor_task import read_task


class Harbor:
    """The format of Harbor task directories."""

    def __init__(self, *, shared: bool = False) -> None:
        """With `shared`, tests run in the agent's own sandbox unless a task asks for another.

        What the agent left there can affect them.
        """
        self._shared = shared

    def recognises(self, path: Path) -> bool:
        """Whether `path` has Harbor's layout, or contains such folders. A native `task.toml` has checks."""
        return path.is_dir() and (is_harbor(path) or any(is_harbor(child) for child in path.iterdir()))

    def read(self, path: Path) -> LoadedTasks:
        """Reads the tasks by id, each from one folder."""
        return read_folders(path, "task.toml", partial(read_task, shared=self._shared))


class HarborShared(Harbor):
    """The same folders, tested in the agent's sandbox. Must be named explicitly."""

    def __init__(self) -> None:
        super().__init__(shared=True)

    def recognises(self, path: Path) -> bool:  # noqa: ARG002
        """Always False."""
        return False


def is_harbor(folder: Path) -> bool:
    """Whether a folder is one Harbor task."""
    if not (folder / "task.toml").is_file():
        return False
    try:
        raw: dict[str, Any] = tomllib.loads((folder / "task.toml").read_text(encoding="utf-8"))
    except ValueError:
        return (folder / "environment").is_dir() or (folder / "steps").is_dir()
    if "tests" in raw:
        return False
    laid_out = (
        (folder / "environment").is_dir()
        or (folder / "steps").is_dir()
        or (folder / "tests" / "test.sh").is_file()
    )
    return laid_out or not raw.keys().isdisjoint({"environment", "schema_version", "version"})
