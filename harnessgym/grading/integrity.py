"""How a task's rewards are decided: by values that this machine compares, or by what judged code can forge.

A run may demand more: `second_opinion = "required"` judges every rewarded workspace by value, and
`integrity = "by_value"` refuses tasks whose rewards are decided in another way.
"""

from collections.abc import Sequence
from typing import Any

from harnessgym.grading.by_value.judge import is_judged_by_value
from harnessgym.grading.check import read_checks
from harnessgym.grading.checklist import GRADER, integrity_of_checks
from harnessgym.grading.verifier import Verifier
from harnessgym.registry import load
from harnessgym.task import Integrity, Task

_NAMED = 5
"""Most tasks that a message names."""


def integrity_of(task: Task) -> Integrity:
    """How the task's rewards are decided. Raises TaskError if its checks cannot be read."""
    if is_judged_by_value(task):
        return "by_value"
    if task.grader == GRADER:
        files = task.metadata.get("test_files", {})
        return integrity_of_checks(
            task, read_checks(task.metadata.get("tests", ()), files, f"Task {task.id!r}")
        )
    # A plain function reads the exported files on this machine, and runs nothing of the agent's.
    grader: Any = load("grader", task.grader)
    return "in_process" if isinstance(grader, Verifier) else "by_value"


def refusal(tasks: Sequence[Task], second_opinion: str, demanded: str) -> str:
    """Why a run with these demands cannot use these tasks; empty if it can."""
    if second_opinion == "required":
        without = [task for task in tasks if task.solution is None or task.steps]
        if without:
            return (
                f"{_counted(without, tasks)} cannot have the second opinion that the run requires: {_REASON}"
            )
        return ""
    weak = [] if demanded == "any" else [task for task in tasks if integrity_of(task) != demanded]
    if not weak:
        return ""
    return f"{_counted(weak, tasks)} are not judged by value, as the run demands. {_REMEDY}"


def no_opinion(task: Task) -> str:
    """Why a task cannot be judged by value in a run that requires it."""
    return f"Task {task.id!r} cannot have the second opinion that the run requires: {_REASON}"


def _counted(some: Sequence[Task], tasks: Sequence[Task]) -> str:
    names = ", ".join(task.id for task in some[:_NAMED]) + ", ..." * (len(some) > _NAMED)
    return f"{len(some)} of {len(tasks)} tasks ({names})"


def refusal_of(task: Task) -> str:
    """Why a run that demands to be judged by value takes no reward of a task."""
    return f'The run demands integrity = "by_value", and {task.id!r} was judged in_process. {_REMEDY}'


_REASON = "no solution, or several steps. Leave them out, or set second_opinion to another value."
_REMEDY = (
    'Set second_opinion = "required" to judge what has a solution and tests by value, give the tasks checks '
    "of the kinds io, call or files, or leave them out."
)
