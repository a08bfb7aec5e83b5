"""Harbor task directories (schema 1.4) as they are: one, or a folder of them.

    fix-it/
      instruction.md    task.toml
      environment/      Dockerfile, or docker-compose.yaml with the one service `main`
      tests/            test.sh writes /logs/verifier/reward.txt or reward.json; with a Dockerfile, the image
      that tests solution/         solve.sh steps/NAME/       the same for each of several steps, where there
      are several

Harbor tests in the container that the agent used, unless a task says otherwise. Here every task is tested in
a fresh container that holds what the agent left in its working folder, and nothing else of it;
`harbor_shared@PATH` tests as Harbor does.
"""

import tomllib
from functools import partial
from pathlib import Path
from typing import Any

from harnessgym.tasks.format import LoadedTasks, read_folders
from harnessgym.tasks.harbor_task import read_task


class Harbor:
    """The format."""

    def __init__(self, *, shared: bool = False) -> None:
        """`shared` tests tasks in the agent's own sandbox where they do not ask for another: what is left
        there can cheat.
        """
        self._shared = shared

    def recognises(self, path: Path) -> bool:
        """A folder of Harbor's layout, or of such folders. A `task.toml` with checks is a native task's."""
        return path.is_dir() and (is_harbor(path) or any(is_harbor(child) for child in path.iterdir()))

    def read(self, path: Path) -> LoadedTasks:
        """The tasks by id, each from one folder."""
        return read_folders(path, "task.toml", partial(read_task, shared=self._shared))


class HarborShared(Harbor):
    """The same folders, tested in the agent's sandbox. Only ever used by name."""

    def __init__(self) -> None:
        super().__init__(shared=True)

    def recognises(self, path: Path) -> bool:  # noqa: ARG002
        """Never by itself."""
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
