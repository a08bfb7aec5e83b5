"""Tasks of a set by their ids."""

from collections.abc import Sequence

from harnessgym.config import nearest
from harnessgym.errors import ConfigError
from harnessgym.task import Task, TaskSet


def all_tasks(found: TaskSet) -> list[Task]:
    """Both splits, in order."""
    return [*found.tasks("train"), *found.tasks("test")]


def named(tasks: Sequence[Task], name: str) -> Task:
    """The task with this id, or the only one whose id ends in it. Raises ConfigError, naming the nearest."""
    for task in tasks:
        if task.id == name:
            return task
    ending = [task for task in tasks if task.id.endswith(f"/{name}")]
    if len(ending) == 1:
        return ending[0]
    if ending:
        raise ConfigError(f"{name!r} is the end of several ids: {', '.join(task.id for task in ending)}. Give one of them.")
    raise ConfigError(f"There is no task {name!r}. {nearest(name, [task.id for task in tasks])}")
