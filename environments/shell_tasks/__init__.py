"""Shell: twelve small chores for an agent with a shell and an editor, and no network. Each is a folder beside
this file.

They need python3, git, sh and coreutils, and nothing else; how such a folder is written is said in
`harnessgym.tasks.native`.
"""

from pathlib import Path

from harnessgym.tasks.native import NativeTasks


class ShellTasks(NativeTasks):
    """The folders beside this file."""

    def __init__(self) -> None:
        super().__init__(Path(__file__).parent / "tasks")

    @property
    def baseline(self) -> Path:
        """Beside this file."""
        return Path(__file__).parent / "baseline.json"
