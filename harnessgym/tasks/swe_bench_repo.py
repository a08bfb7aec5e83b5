"""SWE-bench 5 task repositories: a folder for each instance, which becomes a row.

sweb.yaml             the data sets that the repository publishes, and their splits
tasks/<instance_id>/
    task.yaml         columns: instance_id, repo, base_commit, version, split, log_parser, eval_type ...
    tests.json        {"FAIL_TO_PASS": [...], "PASS_TO_PASS": [...]}
    problem_statement.md  hints.md  gold.patch  test.patch  eval.sh
    Dockerfile        the image, built with this folder as its context
    test_assets/      binary files that a patch cannot carry
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from harnessgym.errors import TaskError
from harnessgym.task import Task
from harnessgym.tasks.format import LoadedTasks
from harnessgym.tasks.rows import TaskRow
from harnessgym.tasks.swe_bench import KNOWN, swe_bench_task
from harnessgym.tasks.swe_task import read_set

_COLUMNS = {
    "patch": "gold.patch",
    "test_patch": "test.patch",
    "eval_script": "eval.sh",
    "problem_statement": "problem_statement.md",
}
_ASSETS = "test_assets"


class SweBenchRepo:
    """The format: a task repository, its `tasks` folder, or one task of it."""

    def recognises(self, path: Path) -> bool:
        """Looks for a `task.yaml` with a `tests.json` beside it."""
        return bool(_folders(path))

    def read(self, path: Path) -> LoadedTasks:
        """Reads the tasks by id, whether they are published or not."""
        rows = []
        problems = []
        for folder in _folders(path):
            try:
                rows.append(_row(folder))
            except TaskError as error:
                problems.append(str(error))
        loaded = read_set(path, KNOWN, _task, rows)
        return replace(loaded, problems=(*problems, *loaded.problems))


def _folders(path: Path) -> list[Path]:
    if not path.is_dir():
        return []
    for root, pattern in ((path, "tests.json"), (path, "*/tests.json"), (path / "tasks", "*/tests.json")):
        folders = [each.parent for each in root.glob(pattern) if (each.parent / "task.yaml").is_file()]
        if folders:
            return sorted(folders)
    return []


def _task(row: TaskRow, name: str) -> Task:
    folder = Path(row.where)
    task = swe_bench_task(row, name)
    assets = {
        **task.metadata["swe_bench"],
        "assets": str((folder / _ASSETS).resolve()) if (folder / _ASSETS).is_dir() else "",
    }
    image = f"context:{folder.resolve()}" if (folder / "Dockerfile").is_file() else task.image
    return replace(task, image=image, metadata={**task.metadata, "swe_bench": assets})


def _row(folder: Path) -> TaskRow:
    values: dict[str, Any] = _mapping(folder / "task.yaml", yaml.safe_load)
    values |= {column: _text(folder / file) for column, file in _COLUMNS.items()}
    if (folder / "hints.md").is_file():
        values["hints_text"] = _text(folder / "hints.md")
    values |= _mapping(folder / "tests.json", json.loads)
    values.setdefault("instance_id", folder.name)
    # YAML reads 1.0, and a commit id of digits alone, as a number.
    for key in ("version", "base_commit"):
        if isinstance(values.get(key), int | float):
            values[key] = str(values[key])
    return TaskRow(str(folder), values)


def _mapping(file: Path, read: Any) -> dict[str, Any]:
    try:
        value = read(_text(file))
    except (ValueError, yaml.YAMLError) as error:
        raise TaskError(f"{file} cannot be read: {error}. Correct it.") from error
    if not isinstance(value, dict):
        raise TaskError(f"{file} holds {str(value)[:40]!r}. Write keys and values.")
    return value


def _text(file: Path) -> str:
    """The text without newline translation: line ends are part of a patch."""
    try:
        return file.read_bytes().decode()
    except FileNotFoundError:
        raise TaskError(f"There is no {file}, which every task of a repository has. Write it.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"{file} cannot be read: {error}.") from error
