"""A task as JSON values, for tasks that travel: with a request, in a store."""

from typing import Any

from pydantic import TypeAdapter, ValidationError

from harnessgym.errors import TaskError
from harnessgym.task import Task

_TASK: TypeAdapter[Task] = TypeAdapter(Task)


def payload_of(task: Task) -> dict[str, Any]:
    """All of a task, equal for equal tasks. Raises `TaskError` if its metadata is not made of JSON values."""
    try:
        found: dict[str, Any] = _TASK.dump_python(task, mode="json")
    except (TypeError, ValueError) as error:
        raise TaskError(f"The task {task.id!r} cannot be written as JSON: {error}") from error
    found["needs"] = sorted(found["needs"])
    return found


def task_of(payload: dict[str, Any]) -> Task:
    """The task that `payload_of` gave. Raises `TaskError` if it is none."""
    try:
        return _TASK.validate_python(payload)
    except ValidationError as error:
        raise TaskError(f"The stored task {payload.get('id')!r} cannot be read: {error}") from error
