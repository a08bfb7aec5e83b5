"""Tasks of a set by their ids."""

from collections.abc import Sequence

from harnessgym.config import nearest
from harnessgym.errors import ConfigError
from harnessgym.task import Task, TaskSet


def all_tasks(found: TaskSet) -> list[Task]:
    """Both splits, in order."""
    return [*found.tasks("train"), *found.tasks("test")]


def chosen(found: TaskSet, only: Sequence[str] | None = None, limit: int | None = None) -> list[Task]:
    """The tasks with these ids, all if there are none; the first so many. Raises ConfigError for an id
    that there is not.
    """
    tasks = all_tasks(found)
    if only:
        tasks = list({task.id: task for task in (named(tasks, name) for name in only)}.values())
    return tasks[:limit]


def named(tasks: Sequence[Task], name: str) -> Task:
    """The task with this id, or the only one whose id ends in it. Raises ConfigError, naming the nearest."""
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
