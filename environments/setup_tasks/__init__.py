"""Setup: eight small repositories that do not work where they lie, and no network. EnvBench's kind of task.

The agent makes the repository's imports resolve and its tests collectable, from what is in the workspace.
Each task is a folder beside this file, as `harnessgym.tasks.native` describes it; what is measured is said in
`environments.setup_tasks.works`.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from harnessgym.task import Split, Task
from harnessgym.tasks.native import NativeTasks


class SetupTasks(NativeTasks):
    """The folders beside this file."""

    def __init__(self) -> None:
        super().__init__(Path(__file__).parent / "tasks")

    @property
    def baseline(self) -> Path:
        """Beside this file."""
        return Path(__file__).parent / "baseline.json"

    def tasks(self, split: Split) -> Sequence[Task]:
        """The same, graded on the channels `imports` and `collected` too."""
        return [
            replace(task, grader="environments.setup_tasks.grader:verifier") for task in super().tasks(split)
        ]
