"""The contract of a task writer, and the conversion of a whole set.

Writers are named by strings in the registry (`task_writer`). A writer notes what its format cannot express,
and refuses a task that its format would change.
"""

import re
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from harnessgym.errors import ConfigError, TaskError
from harnessgym.registry import load
from harnessgym.task import Task


class TaskWriter(Protocol):
    """Writes tasks in one format.

    A writer whose tasks are lines of one file in the set's folder has the attribute `rows = True`.
    """

    def write(self, task: Task, folder: Path) -> Sequence[str]:
        """Writes one task. Returns a sentence for everything that the format cannot express.

        `folder` is the task's own empty folder. With `rows` it is the set's folder, and the writer appends a
        line to its file. Raises TaskError with the reason for a task that it refuses; nothing of it remains.
        """
        ...


@dataclass(frozen=True, slots=True)
class Written:
    """The result for one task."""

    task: str
    folder: Path
    notes: tuple[str, ...] = ()
    """What the format cannot express."""
    refused: str = ""
    """Why it was not written; empty if it was."""


def task_writer(name: str) -> TaskWriter:
    """The writer with this name. Raises `ConfigError` with the known names."""
    made: TaskWriter = load("task_writer", name)()
    return made


def convert(tasks: Sequence[Task], writer: TaskWriter, out: Path, *, add: bool = False) -> Iterator[Written]:
    """Writes tasks below `out`, one after another. Raises `ConfigError` if it is not empty, unless `add`."""
    if not add and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out} is not an empty folder. Give another one, or --add to write into it.")
    out.mkdir(parents=True, exist_ok=True)
    rows = bool(getattr(writer, "rows", False))
    folder_names: set[str] = set()
    for task in tasks:
        yield _written(task, writer, out if rows else _own(task, out, folder_names), rows=rows)


def folder_name(task_id: str) -> str:
    """The last part of an id, limited to letters, digits, dots, dashes and underscores."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", task_id.rstrip("/").rpartition("/")[2]).lstrip("._-")
    return name or "task"


def lay_texts(folder: Path, texts: Mapping[str, str], executable: Collection[str] = ()) -> None:
    """Writes texts to relative paths below a folder."""
    for path, text in texts.items():
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(text.encode())
        place.chmod(0o755 if path in executable else 0o644)


def _own(task: Task, out: Path, names: set[str]) -> Path:
    """The task's folder. If two tasks have one name, the second is named by its whole id."""
    name = folder_name(task.id)
    if name in names:
        name = folder_name(task.id.replace("/", "-"))
    names.add(name)
    return out / name


def _written(task: Task, writer: TaskWriter, folder: Path, *, rows: bool) -> Written:
    if not rows and folder.exists():
        return Written(task.id, folder, refused=f"{folder} is there already.")
    if not rows:
        folder.mkdir()
    try:
        return Written(task.id, folder, tuple(writer.write(task, folder)))
    except TaskError as error:
        if not rows:
            shutil.rmtree(folder)
        return Written(task.id, folder, refused=str(error))
