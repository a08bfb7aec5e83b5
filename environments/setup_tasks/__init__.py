"""Setup: eight small repositories that do not work yet, without network. Tasks in the style of EnvBench.

The agent must make the repository's imports resolve and its tests collectable, using only the workspace. Each
task is a folder beside this file, in the format of `harnessgym.tasks.native`. See
`environments.setup_tasks.works` for how it is graded.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from harnessgym.task import Split, Task
from harnessgym.tasks.native import NativeTasks


class SetupTasks(NativeTasks):
    """The tasks in the folders beside this file."""

    def __init__(self) -> None:
        super().__init__(Path(__file__).parent / "tasks")

    @property
    def baseline(self) -> Path:
        """Path of the baseline, beside this file."""
        return Path(__file__).parent / "baseline.json"

    def tasks(self, split: Split) -> Sequence[Task]:
        """The tasks of a split, also graded on the channels `imports` and `collected`."""
        return [
            replace(task, grader="environments.setup_tasks.grader:verifier") for task in super().tasks(split)
        ]
