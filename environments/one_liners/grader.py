"""Judges a one-liner: files must be there with the right text, folders be there, or files be gone.

The agent wrote what is looked at, so it is opened as hostile: see `environments.small_file`.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from environments.small_file import read_small_text
from harnessgym.task import Grade, Task

_MAX_BYTES = 4096


def grade(task: Task, workspace: Path) -> Grade:
    """Reward 1.0 if every path is as `task.metadata["expect"]` says, else 0.0.

    A path's text is compared without the blanks around its lines; None: it is gone; a path that ends with "/"
    is a folder.
    """
    expect: Mapping[str, str | None] = task.metadata["expect"]
    wrong = [
        name
        for name, text in expect.items()
        if not _is_as_expected(workspace / name, text, folder=name.endswith("/"))
    ]
    return Grade({"reward": float(not wrong)}, evidence={"wrong": wrong})


def _is_as_expected(path: Path, text: str | None, *, folder: bool) -> bool:
    if text is None:
        return not os.path.lexists(path)
    if folder:
        return path.is_dir() and not path.is_symlink()
    found = read_small_text(path, _MAX_BYTES)
    return found is not None and _lines(found) == _lines(text)


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.strip().splitlines()]
