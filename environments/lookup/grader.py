"""Judges a lookup: the answer file must hold the value and nothing else.

The file was written by the harness, so it is opened as hostile: see `environments.small_file`.
"""

from pathlib import Path

from environments.lookup.protocol import ANSWER_FILE
from environments.small_file import read_small_text
from harnessgym.task import Grade, Task

_MAX_BYTES = 256


def grade(task: Task, workspace: Path) -> Grade:
    """Reward 1.0 if `answer.txt` holds exactly the task's answer, whitespace around it aside, else 0.0,
    whatever it is.
    """
    found = read_small_text(workspace / ANSWER_FILE, _MAX_BYTES)
    return Grade({"reward": float(found is not None and found.strip() == task.metadata["answer"])})
