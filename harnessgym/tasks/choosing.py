"""Selects tasks of a set by their ids."""

from collections.abc import Sequence

from harnessgym.config import nearest
from harnessgym.errors import ConfigError
from harnessgym.task import Task, TaskSet


def all_tasks(found: TaskSet) -> list[Task]:
    """The tasks of both splits, train first."""
    return [*found.tasks("train"), *found.tasks("test")]


def chosen(found: TaskSet, only: Sequence[str] | None = None, limit: int | None = None) -> list[Task]:
    """The first `limit` tasks with the ids in `only`, or of all tasks.

    Raises ConfigError for an unknown id.
    """
    tasks = all_tasks(found)
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
