"""Finds task sets: by a name, a class, or a file or folder in one of the formats. Selects tasks by their ids.

task_set("lookup")               a registered task set
task_set("my_tasks:MyTasks")     a class of yours
task_set("my/harbor-tasks")      a file or folder; its format is recognised
task_set("harbor@my/tasks")      the same with an explicit format
"""

from collections.abc import Sequence
from pathlib import Path

from harnessgym.config import nearest
from harnessgym.errors import ConfigError
from harnessgym.registry import REGISTRY, load, names
from harnessgym.task import Task, TaskSet
from harnessgym.tasks.format import ReadTasks, TaskFormat


def task_set(spec: str) -> TaskSet:
    """The task set that `spec` names. Raises `ConfigError` with the possible forms if it names none."""
    # Registered names come first, so that a folder of the same name does not change what a command means.
    if spec in REGISTRY["task_set"]:
        made: TaskSet = load("task_set", spec)()
        return made
    named, at, rest = spec.partition("@")
    if at and named in REGISTRY["task_format"] and Path(rest).exists():
        return ReadTasks(task_format(named), Path(rest))
    if spec and Path(spec).exists():
        return ReadTasks(recognised(Path(spec)), Path(spec))
    if ":" in spec and "/" not in spec:
        other: TaskSet = load("task_set", spec)()
        return other
    hint = nearest(spec, names("task_set"))
    raise ConfigError(
        f"There are no tasks {spec!r}. {hint} Give a registered task set, `module:Class`, or a file or "
        f"folder of tasks (formats: {', '.join(names('task_format'))}; `FORMAT@PATH` says which)."
    )


def absolute(spec: str) -> str:
    """The same spec for a process with another working folder: paths become absolute."""
    named, at, rest = spec.partition("@")
    if spec in REGISTRY["task_set"]:
        return spec
    if at and named in REGISTRY["task_format"] and Path(rest).exists():
        return f"{named}@{Path(rest).resolve()}"
    return str(Path(spec).resolve()) if spec and Path(spec).exists() else spec


def task_format(name: str) -> TaskFormat:
    """The format with this name. Raises `ConfigError` with the known names."""
    made: TaskFormat = load("task_format", name)()
    return made


def recognised(path: Path) -> TaskFormat:
    """The format of a file or folder. Raises `ConfigError` if none recognises it."""
    for name in names("task_format"):
        candidate = task_format(name)
        if candidate.recognises(path):
            return candidate
    raise ConfigError(
        f"{path} is in no task format that is known ({', '.join(names('task_format'))}). A native task is "
        "a folder with a task.toml; see docs/tasks.md for the others, or say the format: FORMAT@PATH."
    )


def problems_of(tasks: TaskSet) -> Sequence[str]:
    """The problems of a set, or nothing if it has no such attribute."""
    problems: Sequence[str] = getattr(tasks, "problems", ())
    return problems


def notes_of(tasks: TaskSet) -> Sequence[str]:
    """The notes of a set, or nothing if it has no such attribute."""
    notes: Sequence[str] = getattr(tasks, "notes", ())
    return notes


def remarks_of(tasks: TaskSet, most: int = 8) -> list[str]:
    """Lines for problems and notes: at most `most` of each kind, and the number of the others."""
    lines = []
    for title, remarks in (("left out", problems_of(tasks)), ("note", notes_of(tasks))):
        lines += [f"{title}: {line}" for line in remarks[:most]]
        lines += [f"{title}: ... and {len(remarks) - most} more (harnessgym tasks list says all)"] * (
            len(remarks) > most
        )
    return lines


def all_tasks(whole_set: TaskSet) -> list[Task]:
    """The tasks of both splits, train first."""
    return [*whole_set.tasks("train"), *whole_set.tasks("test")]


def chosen(whole_set: TaskSet, only: Sequence[str] | None = None, limit: int | None = None) -> list[Task]:
    """The first `limit` tasks with the ids in `only`, or of all tasks.

    Raises ConfigError for an unknown id.
    """
    tasks = all_tasks(whole_set)
    if only:
        tasks = list({task.id: task for task in (named(tasks, name) for name in only)}.values())
    return tasks[:limit]


def named(tasks: Sequence[Task], name: str) -> Task:
    """The task with this id, or the only one whose id ends with it. Raises ConfigError."""
    for task in tasks:
        if task.id == name:
            return task
    ending = [task for task in tasks if task.id.endswith(f"/{name}")]
    if len(ending) == 1:
        return ending[0]
    if ending:
        raise ConfigError(
            f"{name!r} is the end of several ids: {', '.join(task.id for task in ending)}. Give one of them."
        )
    raise ConfigError(f"There is no task {name!r}. {nearest(name, [task.id for task in tasks])}")
