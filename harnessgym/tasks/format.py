"""The contract of a task format: one file each in this package, named by strings in the registry
(`task_format`).

A format looks at a path, says whether it is one of its own, and reads it: the tasks that can be used, a
sentence for each that cannot, and notes about what was kept but means nothing here. One malformed task never
takes the others with it.
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
"""Beside a task set: what `harnessgym tasks check` found (`harnessgym.validation.baseline`)."""
_SHOWN = 8
"""Problems that one message lists."""


@dataclass(frozen=True, slots=True)
class LoadedTasks:
    """What a path held."""

    name: str
    """What the set is called; the first part of its tasks' ids."""
    tasks: tuple[Task, ...]
    """In a fixed order."""
    problems: tuple[str, ...] = ()
    """A sentence for each task that was left out: the file, the key, what to do."""
    notes: tuple[str, ...] = ()
    """A sentence for each thing that was kept and has no effect, such as an unknown key."""


class TaskFormat(Protocol):
    """How tasks of one kind are written down."""

    def recognises(self, path: Path) -> bool:
        """Whether the file or folder is of this format, by a cheap look at it."""
        ...

    def read(self, path: Path) -> LoadedTasks:
        """Everything in it. Raises TaskError only when nothing at all can be said of the path."""
        ...


class ReadTasks:
    """The tasks of one path in one format, read when they are first asked for.

    Raises TaskError, listing the problems, when not one task can be used.
    """

    def __init__(self, format: TaskFormat, path: Path) -> None:  # noqa: A002
        self._format = format
        self.path = path

    @property
    def baseline(self) -> Path:
        """Where what was found of the tasks is kept: in the folder, or beside the file."""
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
    """The tasks by id, each from one folder that holds the file `marker`: `path` itself, or every such folder
    in it.

    `read` is given a folder, what stands before its task's id, and where to note what should be known; what
    it raises as `TaskError` leaves the others. Raises `TaskError` if there is no such path.
    """
    if not path.is_dir():
        raise TaskError(f"There is no task folder {path}.")
    alone = (path / marker).is_file()
    folders = [path] if alone else sorted(found.parent for found in path.glob(f"*/{marker}"))
    name = path.resolve().name
    tasks: list[Task] = []
    problems: list[str] = []
    said: list[tuple[str, str]] = []
    for folder in folders:
        notes = Notes()
        try:
            tasks.append(read(folder, "" if alone else name, notes))
        except TaskError as error:
            problems.append(str(error))
        else:
            said += [(folder.name, note) for note in notes.said]
    kept, doubles = without_doubles(sorted(tasks, key=lambda task: task.id), path)
    return LoadedTasks(name, kept, (*problems, *doubles), joined(said))


def without_doubles(tasks: Sequence[Task], where: Path) -> tuple[tuple[Task, ...], tuple[str, ...]]:
    """The tasks whose id is theirs alone, or which came first with it; and a problem for each other."""
    seen: dict[str, Task] = {}
    problems = []
    for task in tasks:
        if task.id in seen:
            problems.append(f"{where} has two tasks with the id {task.id!r}; the first is used. Rename one.")
        else:
            seen[task.id] = task
    return tuple(seen.values()), tuple(problems)
