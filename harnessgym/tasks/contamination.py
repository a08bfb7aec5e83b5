"""Contamination: tasks of the held-out split that a run would also train on."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

from harnessgym.task import Task

_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Contamination:
    """Held-out tasks that are training tasks too."""

    same_id: tuple[str, ...]
    same_question: tuple[str, ...]
    """Held-out tasks under another id that begin like a training task: same instruction, files and image."""

    @property
    def refusal(self) -> str:
        """Why the run must not start; empty if it may."""
        if not self.same_id:
            return ""
        return f"{_named(self.same_id)} in both splits: an evaluation would measure what was memorised."

    @property
    def warning(self) -> str:
        """What to say before the run starts; empty if nothing."""
        if not self.same_question:
            return ""
        return (
            f"{_named(self.same_question)} held out, and a training task has the same instruction, files and "
            "image: the evaluation measures in part what was memorised."
        )


def contamination(training: Sequence[Task], held_out: Sequence[Task]) -> Contamination:
    """Compares two splits by id, and by what the agent is given."""
    ids = {task.id for task in training}
    questions = {_question(task) for task in training}
    others = [task for task in held_out if task.id not in ids]
    return Contamination(
        tuple(task.id for task in held_out if task.id in ids),
        tuple(task.id for task in others if _question(task) in questions),
    )


def _question(task: Task) -> str:
    """A digest of what an agent is given."""
    given = {
        "instruction": task.instruction,
        "files": dict(task.files),
        "image": task.image,
        "setup": task.setup.run,
        "steps": [(step.instruction, dict(step.files), step.setup.run) for step in task.steps],
    }
    return hashlib.sha256(json.dumps(given, sort_keys=True).encode()).hexdigest()


def _named(ids: Sequence[str]) -> str:
    names = ", ".join(ids[:_SHOWN]) + (f" and {len(ids) - _SHOWN} more" if len(ids) > _SHOWN else "")
    return f"{names} {'is' if len(ids) == 1 else 'are'}"
