"""Task sets in Python: their graders count how often they were asked, in a folder that the environment
names.
"""

import os
from pathlib import Path

from harnessgym.errors import SandboxError
from harnessgym.task import Grade, Solution, Task

FOLDER = "HARNESSGYM_TEST_FOLDER"
HERE = "tests.harnessgym.tasks.sets"


def asked(task):
    """How often a task's grader has been asked for work that holds an answer, this time among them."""
    count = Path(os.environ[FOLDER]) / task.id.replace("/", "-")
    before = len(count.read_text()) if count.exists() else 0
    count.write_text("x" * (before + 1))
    return before + 1


def steady(task, workspace):
    """1 for an answer."""
    there = (workspace / "answer.txt").exists()
    if there:
        asked(task)
    return Grade({"reward": float(there)})


def flaky(task, workspace):
    """1 for an answer, but not the second time."""
    there = (workspace / "answer.txt").exists()
    return Grade({"reward": float(there and asked(task) != 2)})


def loses(task, workspace):
    """As if a sandbox had failed: each time for the task "gone", the first time for others."""
    if asked(task) == 1 or task.id.endswith("gone"):
        raise SandboxError("The machine is tired.")
    return Grade({"reward": float((workspace / "answer.txt").exists())})


def sulks(task, workspace):
    """Its own bug."""
    raise ZeroDivisionError("no points")


class Counted:
    """Two tasks; subclasses have another grader."""

    name = "counted"
    grader = "steady"
    names = ("a", "b")

    @property
    def baseline(self):
        return Path(os.environ[FOLDER]) / "baseline.json"

    def tasks(self, split):
        solution = Solution({"answer.txt": "42"})
        made = [
            Task(f"counted/{name}", "Answer.", grader=f"{HERE}:{self.grader}", solution=solution)
            for name in self.names
        ]
        return made if split == "train" else []


class Flaky(Counted):
    grader, names = "flaky", ("shaky",)


class Losing(Counted):
    grader, names = "loses", ("back", "gone")


class Sulking(Counted):
    grader, names = "sulks", ("sad",)
