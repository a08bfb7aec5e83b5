"""Shell: twelve small tasks for an agent with a shell and an editor, without network.

Each is a folder beside this file, in the format of `harnessgym.tasks.native`. They need only python3, git, sh
and coreutils.
"""

from pathlib import Path

from harnessgym.tasks.native import NativeTasks


class ShellTasks(NativeTasks):
    """The tasks in the folders beside this file."""

    def __init__(self) -> None:
        super().__init__(Path(__file__).parent / "tasks")

    @property
    def baseline(self) -> Path:
        """Path of the baseline, beside this file."""
        return Path(__file__).parent / "baseline.json"
