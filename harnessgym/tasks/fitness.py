"""Whether tasks are fit to be trained on: what their baseline says before a run begins."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harnessgym.task import Task, TaskSet
from harnessgym.tasks.baseline import Baseline, Entry, baseline_path

_NAMED = 5
"""Tasks that one message names."""


@dataclass(frozen=True, slots=True)
class Fitness:
    """Of some tasks of a set."""

    spec: str
    """How the set was named."""
    failed: Mapping[str, Entry]
    """By task id."""
    unchecked: tuple[str, ...]
    """Tasks that were never checked, or have changed since."""

    def of(self, tasks: Sequence[Task]) -> "Fitness":
        """Of these alone."""
        ids = {task.id for task in tasks}
        failed = {task: entry for task, entry in self.failed.items() if task in ids}
        return Fitness(self.spec, failed, tuple(task for task in self.unchecked if task in ids))

    @property
    def refusal(self) -> str:
        """Why these tasks are not trained on; empty if none failed."""
        if not self.failed:
            return ""
        lines = [f"{task}: {' '.join(entry.problems.values())}" for task, entry in list(self.failed.items())[:_NAMED]]
        lines += [f"... and {len(self.failed) - _NAMED} more"] * (len(self.failed) > _NAMED)
        count = f"{len(self.failed)} task{'s' * (len(self.failed) > 1)}"
        return f"{count} of {self.spec!r} failed when checked:\n  " + "\n  ".join(lines) + f"\nSee why: {self.command}"

    @property
    def warning(self) -> str:
        """That tasks are unchecked, on one line; empty if none is."""
        if not self.unchecked:
            return ""
        count = f"{len(self.unchecked)} task{'s' * (len(self.unchecked) > 1)}"
        return f"{count} of {self.spec!r} never checked, or changed since: {self.command}"

    @property
    def command(self) -> str:
        """What checks the set."""
        return f"harnessgym tasks check {self.spec}"


def fitness(spec: str, found: TaskSet, tasks: Sequence[Task]) -> Fitness:
    """What the set's baseline says of some of its tasks. Raises ConfigError for a baseline that cannot be read."""
    book = Baseline(baseline_path(found))
    if not book:
        return Fitness(spec, {}, tuple(task.id for task in tasks))
    entries = {task.id: book.of(task) for task in tasks}
    failed = {task: entry for task, entry in entries.items() if entry is not None and entry.state == "failed"}
    return Fitness(spec, failed, tuple(task for task, entry in entries.items() if entry is None))
