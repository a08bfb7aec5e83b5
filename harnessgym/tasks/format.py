"""The contract of a task format. Members are files of this package, named in the registry (`task_format`).

A format recognises its paths and reads them. It returns the usable tasks, a sentence for each task that is
not usable, and notes about data that it kept but that has no effect here. A malformed task never affects
the others.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

from harnessgym.errors import TaskError
from harnessgym.task import Split, Task
from harnessgym.tasks.notes import Notes, joined

BASELINE_FILE = "baseline.json"
"""File beside a task set with the results of `harnessgym tasks check` (`harnessgym.validation.baseline`)."""
_SHOWN = 8
"""Most problems that one message lists."""


@dataclass(frozen=True, slots=True)
class LoadedTasks:
    """The tasks of a path."""

    name: str
    """Name of the set; the first part of its tasks' ids."""
    tasks: tuple[Task, ...]
    """In a fixed order."""
    problems: tuple[str, ...] = ()
    """A sentence for each task that was left out, with the file, the key, and what to do."""
    notes: tuple[str, ...] = ()
    """A sentence for each thing that was kept without effect, such as an unknown key."""


class TaskFormat(Protocol):
    """Reads tasks of one format."""

    def recognises(self, path: Path) -> bool:
        """Whether the file or folder has this format. Must be cheap."""
        ...

    def read(self, path: Path) -> LoadedTasks:
        """Reads everything in it. Raises TaskError only if nothing at all can be read."""
        ...


class ReadTasks:
    """The tasks of one path in one format, read on first access.

    Access raises TaskError with the problems if no task is usable.
    """

    def __init__(self, format: TaskFormat, path: Path) -> None:  # noqa: A002
        self._format = format
        self.path = path

    @property
    def baseline(self) -> Path:
        """Path of the baseline: in the folder, or beside the file."""
        return (
            self.path / BASELINE_FILE
            if self.path.is_dir()
            else self.path.with_name(f"{self.path.name}.{BASELINE_FILE}")
        )

    @property
    def name(self) -> str:
        """See `LoadedTasks.name`."""
        return self._loaded.name

    @property
    def problems(self) -> Sequence[str]:
        """See `LoadedTasks.problems`."""
        return self._loaded.problems

    @property
    def notes(self) -> Sequence[str]:
        """See `LoadedTasks.notes`."""
        return self._loaded.notes

    def tasks(self, split: Split) -> Sequence[Task]:
        """All usable tasks of a split."""
        return [task for task in self._loaded.tasks if task.split == split]

    @cached_property
    def _loaded(self) -> LoadedTasks:
        loaded = self._format.read(self.path)
        if not loaded.tasks:
            shown = [
                *loaded.problems[:_SHOWN],
                *([f"... and {len(loaded.problems) - _SHOWN} more"] * (len(loaded.problems) > _SHOWN)),
            ]
            raise TaskError(
                f"{self.path} holds no task that can be used.\n  " + "\n  ".join(shown or ["It is empty."])
            )
        return loaded


def read_folders(path: Path, marker: str, read: Callable[[Path, str, Notes], Task]) -> LoadedTasks:
    """The tasks by id, each from a folder with the file `marker`: `path` itself, or the folders in it.

    `read` gets a folder, the prefix of its task's id, and where to add notes. If it raises `TaskError`, only
    that task is left out. Raises `TaskError` if there is no such path.
    """
    if not path.is_dir():
        raise TaskError(f"There is no task folder {path}.")
    alone = (path / marker).is_file()
    folders = [path] if alone else sorted(marker_file.parent for marker_file in path.glob(f"*/{marker}"))
    name = path.resolve().name
    tasks: list[Task] = []
    problems: list[str] = []
    folder_notes: list[tuple[str, str]] = []
    for folder in folders:
        notes = Notes()
        try:
            tasks.append(read(folder, "" if alone else name, notes))
        except TaskError as error:
            problems.append(str(error))
        else:
            folder_notes += [(folder.name, note) for note in notes.said]
    kept, doubles = without_doubles(sorted(tasks, key=lambda task: task.id), path)
    return LoadedTasks(name, kept, (*problems, *doubles), joined(folder_notes))


def without_doubles(tasks: Sequence[Task], where: Path) -> tuple[tuple[Task, ...], tuple[str, ...]]:
    """The first task of each id, and a problem for each further one."""
    seen: dict[str, Task] = {}
    problems = []
    for task in tasks:
        if task.id in seen:
            problems.append(f"{where} has two tasks with the id {task.id!r}; the first is used. Rename one.")
        else:
            seen[task.id] = task
    return tuple(seen.values()), tuple(problems)
