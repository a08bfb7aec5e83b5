"""Judges a lookup: the answer file must hold the value and nothing else.

The file was written by the harness, so it is opened as hostile: no links followed, no blocking on pipes, a bounded read.
"""

import os
import stat
from pathlib import Path

from environments.lookup.protocol import ANSWER_FILE
from harnessgym.task import Grade, Task

_MAX_BYTES = 256


def grade(task: Task, workspace: Path) -> Grade:
    """Reward 1.0 if `answer.txt` holds exactly the task's answer, whitespace around it aside, else 0.0, whatever it is."""
    return Grade({"reward": float(_read_answer(workspace / ANSWER_FILE) == task.metadata["answer"])})


def _read_answer(path: Path) -> str | None:
    """The stripped text of a small regular file, or None."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _MAX_BYTES:
            return None
        return os.read(descriptor, _MAX_BYTES).decode().strip()
    except (OSError, UnicodeDecodeError):
        return None
    finally:
        os.close(descriptor)
