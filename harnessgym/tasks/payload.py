"""Converts a task to JSON values and back, for requests and for the store."""

from typing import Any

from pydantic import TypeAdapter, ValidationError

from harnessgym.errors import TaskError
from harnessgym.task import Task

_TASK: TypeAdapter[Task] = TypeAdapter(Task)


def payload_of(task: Task) -> dict[str, Any]:
    """A task as JSON values, equal for equal tasks. Raises `TaskError` if its metadata is not JSON."""
    try:
        payload: dict[str, Any] = _TASK.dump_python(task, mode="json")
    except (TypeError, ValueError) as error:
        raise TaskError(f"The task {task.id!r} cannot be written as JSON: {error}") from error
    # A set has no order, and equal tasks must give equal payloads.
    payload["needs"] = sorted(payload["needs"])
    return payload


def task_of(payload: dict[str, Any]) -> Task:
    """The task of a payload from `payload_of`. Raises `TaskError` if it is malformed."""
    try:
        return _TASK.validate_python(payload)
    except ValidationError as error:
        raise TaskError(f"The stored task {payload.get('id')!r} cannot be read: {error}") from error
