"""`harnessgym tasks check` over what ships: solutions and doing nothing, two tasks at a time."""

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.sandbox.timing import Clock, Figures
from harnessgym.registry import load
from harnessgym.tasks.source import all_tasks, task_set
from harnessgym.validation.baseline import Baseline
from harnessgym.validation.task_check import CheckedTask, CheckPlan, TaskSetCheck

SETS = ("shell", "setup", "swe")
_JOBS = 2
_QUICK = 2
"""Tasks of a set that are checked with `--quick`."""


def measure(*, quick: bool) -> Iterator[tuple[str, Figures]]:
    """A row for each set, which is checked from nothing: no baseline is read or kept."""
    for name in SETS:
        yield f"tasks check {name}", _checked(name, _QUICK if quick else None)


def _checked(name: str, limit: int | None) -> Figures:
    tasks = all_tasks(task_set(name))[:limit]
    factory = load("sandbox", "bubblewrap")
    with tempfile.TemporaryDirectory(prefix="harnessgym-check-") as folder:
        book = Baseline(Path(folder) / "baseline.json")
        backend = factory(factory.settings(workspace_root=Path(folder) / "w"))
        clock = Clock()
        found = asyncio.run(TaskSetCheck(backend, book, CheckPlan("bubblewrap", repeats=1)).run(tasks, _JOBS))
        took = clock()
    return {
        "seconds": took,
        "tasks_per_minute": 60.0 * len(tasks) / took,
        "tasks": float(len(tasks)),
        "not_passed": float(sum(_wanting(each) for each in found)),
    }


def _wanting(checked: CheckedTask) -> bool:
    return checked.state != "passed"
