"""Keeps compiled Python of the agent's out of grading: a .pyc file need not hold what its source says.

Compiled files are removed from what is graded, except those that the task names as artifacts. Our programs
that import the workspace read only its sources (`runners/starting.py`).
"""

import os
import secrets
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path, PurePosixPath

_CACHE = "__pycache__"


def is_compiled(path: str) -> bool:
    """Whether a path is that of a .pyc file, or of something in a `__pycache__` folder."""
    parts = PurePosixPath(path).parts
    return _CACHE in parts or bool(parts and parts[-1].endswith(".pyc"))


def remove_compiled(folder: Path, named: Sequence[str] = ()) -> tuple[str, ...]:
    """Removes compiled files below `folder`, and links of their names. Returns their paths, sorted.

    `named` are paths that the task asks for: one that is compiled stays, with what is below it.
    """
    kept = [PurePosixPath(path) for path in named if is_compiled(path)]
    removed: list[str] = []
    for where, folders, names in os.walk(folder, topdown=False):
        below = PurePosixPath(os.path.relpath(where, folder))
        for name in (*names, *(name for name in folders if os.path.islink(os.path.join(where, name)))):
            if not name.endswith(".pyc") and name != _CACHE and _CACHE not in below.parts:
                continue
            path = below / name
            if not any(path.is_relative_to(each) for each in kept):
                _unlink(Path(where, name))
                removed.append(str(path))
        if _CACHE in below.parts and not os.listdir(where):
            os.rmdir(where)
    return tuple(sorted(removed))


def _unlink(path: Path) -> None:
    try:
        path.unlink()
    except PermissionError:
        # The export keeps the agent's modes, and a folder may be one that nothing can be removed from.
        path.parent.chmod(0o700)
        path.unlink()


def command(program: str) -> list[str]:
    """The command that runs a program, given as text, which imports the workspace from its sources."""
    return ["python3", "-I", "-B", "-c", runner("starting"), program]


def runner(name: str) -> str:
    """The text of a program in `runners/`."""
    return (files("harnessgym.grading.runners") / f"{name}.py").read_text(encoding="utf-8")


def environment(workspace: Path) -> Mapping[str, str]:
    """Variables for commands that may run Python beside `workspace`, so that it reads no compiled file there.

    Empty if there is none: the interpreter would compile its own library each time.
    """
    has_compiled = any(
        is_compiled(name) for _, folders, names in os.walk(workspace) for name in (*folders, *names)
    )
    return {"PYTHONPYCACHEPREFIX": f"/nonexistent/{secrets.token_hex(8)}"} if has_compiled else {}
