"""Writes tasks as native folders, which `harnessgym.tasks.native` reads.

Only for tasks with a list of checks, because a folder cannot name another grader.
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path, PurePosixPath
from typing import Any

import tomli_w

from harnessgym.errors import TaskError
from harnessgym.task import Limits, Setup, Solution, Task
from harnessgym.tasks.native import GRADER, SETUP, STREAM
from harnessgym.tasks.writing import folder_name, lay_texts

_OWN = ("tests", "test_files", "score", "base")
"""Keys of the metadata that the format stores elsewhere."""
_EXECUTABLE = ("chmod", "+x", "--")
_SAID = frozenset({
    "id", "instruction", "split", "seed", "files", "image", "limits", "network", "needs", "setup",
    "artifacts", "grader",
    "verifier", "solution", "metadata",
})  # fmt: skip
"""Fields of a task that a native folder can express. A task that sets others is refused."""


class NativeWriter:
    """Writes task folders: see `harnessgym.tasks.native`."""

    def write(self, task: Task, folder: Path) -> Sequence[str]:
        """See `harnessgym.tasks.writing.TaskWriter`."""
        _refuse(task)
        notes: list[str] = []
        files = dict(task.files)
        setup = task.setup
        table = _table(task, folder.name, notes)
        if STREAM in files and ("sh", "-c", SETUP) in setup.run:
            (folder / "repo").mkdir()
            (folder / "repo" / "history.stream").write_bytes(files.pop(STREAM).encode())
            table["repo"] = {"base": task.metadata.get("base", "main")}
            setup = Setup(
                tuple(each for each in setup.run if each != ("sh", "-c", SETUP)), setup.hosts, setup.timeout_s
            )
        marked, rest = _executables(setup.run, files)
        lay_texts(folder / "files", files, marked)
        lay_texts(folder / "tests", task.metadata.get("test_files", {}))
        if task.solution is not None:
            notes += _write_solution(task.solution, folder)
        table |= _setup(Setup(rest, setup.hosts, setup.timeout_s))
        (folder / "instruction.md").write_text(task.instruction.strip() + "\n", encoding="utf-8")
        tests = task.metadata.get("tests", ())
        table["tests"] = [_sayable(check, f"tests[{number}]", notes) for number, check in enumerate(tests)]
        (folder / "task.toml").write_text(tomli_w.dumps(table), encoding="utf-8")
        return notes


def _refuse(task: Task) -> None:
    """Raises TaskError for a task that a folder cannot express."""
    if task.grader not in (GRADER, "checks"):
        raise TaskError(f"It is judged by {task.grader!r}; a native task is judged by checks ({GRADER}).")
    plain = Task(task.id, task.instruction)
    if unsaid := [
        each.name for each in fields(Task) if each.name not in _SAID and _differs(task, plain, each.name)
    ]:
        raise TaskError(f"It has {', '.join(unsaid)}, which a native task cannot express.")
    if not task.instruction.strip():
        raise TaskError("It has no instruction.")
    hidden = [path for path in task.files if "__pycache__" in PurePosixPath(path).parts]
    if hidden:
        raise TaskError(f"Its file {hidden[0]} lies in __pycache__, which is not read from a folder.")


def _differs(task: Task, plain: Task, name: str) -> bool:
    return bool(getattr(task, name) != getattr(plain, name))


def _table(task: Task, folder: str, notes: list[str]) -> dict[str, Any]:
    """`task.toml` without the set-up and the checks."""
    name = folder_name(task.id)
    all_limits = {each.name: getattr(task.limits, each.name) for each in fields(Limits)}
    limits = {
        key: value
        for key, value in all_limits.items()
        if value is not None and value != getattr(Limits(), key)
    }
    metadata = _sayable(
        {key: value for key, value in task.metadata.items() if key not in _OWN}, "metadata", notes
    )
    if task.image is not None and task.image.startswith("context:"):
        notes.append(f"image: {task.image} is a folder of this machine; it is named, not copied.")
    every = {
        "id": "" if name == folder else name,
        "split": task.split,
        "seed": task.seed or None,
        "image": task.image,
        "needs": sorted(task.needs),
        "artifacts": [] if task.artifacts == (".",) else list(task.artifacts),
        "verifier": "" if task.verifier == "separate" else task.verifier,
        "score": task.metadata.get("score", "all"),
        "limits": limits,
        "metadata": metadata,
    }
    return {key: value for key, value in every.items() if value}


def _setup(setup: Setup) -> dict[str, Any]:
    """`[setup]`, if there is any."""
    if not setup.run and not setup.hosts:
        return {}
    lines = [each[2] if each[:2] == ("sh", "-c") and len(each) == 3 else list(each) for each in setup.run]
    return {"setup": {"run": lines, "hosts": list(setup.hosts), "timeout_s": setup.timeout_s}}


def _executables(
    run: Sequence[tuple[str, ...]], files: Mapping[str, str]
) -> tuple[frozenset[str], tuple[tuple[str, ...], ...]]:
    """The files that the first command makes executable, and the other commands.

    The files are made executable in the folder instead.
    """
    if run and run[0][:3] == _EXECUTABLE and set(run[0][3:]) <= files.keys():
        return frozenset(run[0][3:]), tuple(run[1:])
    return frozenset(), tuple(run)


def _write_solution(solution: Solution, folder: Path) -> list[str]:
    marked, rest = _executables(solution.run, solution.files)
    lay_texts(folder / "gold", solution.files, marked)
    if not rest:
        return []
    script = folder / "gold.sh"
    if len(rest) == 1 and rest[0][:3] == ("sh", "-e", "-c") and len(rest[0]) == 4:
        script.write_text(rest[0][3], encoding="utf-8")
        return []
    script.write_text("".join(f"{shlex.join(command)}\n" for command in rest), encoding="utf-8")
    return ["solution: its commands became the lines of one script."]


def _sayable(value: Any, where: str, notes: list[str]) -> Any:
    """A value as TOML can express it: keys without a value are left out.

    Raises TaskError for a list with null.
    """
    if isinstance(value, Mapping):
        empty = [key for key, each in value.items() if each is None]
        notes.extend(f"{where}.{key} has no value, and is left out: TOML has no null." for key in empty)
        return {
            str(key): _sayable(each, f"{where}.{key}", notes)
            for key, each in value.items()
            if each is not None
        }
    if isinstance(value, list | tuple):
        if None in value:
            raise TaskError(f"{where} holds null, which TOML cannot say.")
        return [_sayable(each, f"{where}[{number}]", notes) for number, each in enumerate(value)]
    return value
