"""Tasks as SWE-bench rows: a line of `tasks.jsonl` for each, as `harnessgym.tasks.swe_bench` reads it.

For tasks of that format, and for others whose metadata says what a row says: `fail_to_pass`, `pass_to_pass`, `test_patch`,
`gold_patch`, and, where they are known, `repo`, `version`, `base_commit`, `test_cmd`, `eval_script`, `log_parser`.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harnessgym.errors import TaskError
from harnessgym.grading.eval_script import eval_script
from harnessgym.task import Task
from harnessgym.tasks.rows import Row
from harnessgym.tasks.swe_bench import swe_bench_task
from harnessgym.tasks.writing import folder_name

FILE = "tasks.jsonl"
_COPIED = ("version", "base_commit", "test_patch", "eval_script", "log_parser", "eval_type")
_LEFT_OUT = ("version", "base_commit", "eval_script", "image_assets")
"""Columns that are not written when they are empty."""
_LISTS = {"fail_to_pass": "FAIL_TO_PASS", "pass_to_pass": "PASS_TO_PASS"}
_BASE_FILES = "base_files is a column of ours: other readers of SWE-bench rows want an image with the repository instead."


class SweBenchWriter:
    """Appends rows."""

    rows = True

    def write(self, task: Task, folder: Path) -> Sequence[str]:
        """See `harnessgym.tasks.writing.TaskWriter`."""
        if task.steps:
            raise TaskError("It has steps; a row has one issue.")
        spec = task.metadata.get("swe_bench")
        row = _own_row(task, spec) if isinstance(spec, Mapping) else _made_row(task, task.metadata)
        row["split"] = task.split
        notes = []
        if task.image is not None and task.image.startswith("context:"):
            notes.append(f"The image is built from {task.image.removeprefix('context:')}, which the row only names.")
        if task.image is not None:
            row["image"] = task.image
        if task.files:
            row["base_files"] = dict(task.files)
            notes.append(_BASE_FILES)
        row = {key: value for key, value in row.items() if value or key not in _LEFT_OUT}
        swe_bench_task(Row("The row", row), "")  # refuses what could not be read again
        with (folder / FILE).open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(row, ensure_ascii=False) + "\n")
        return notes


def _own_row(task: Task, spec: Mapping[str, Any]) -> dict[str, Any]:
    """The row that a task of this format was read from."""
    row: dict[str, Any] = dict(task.metadata.get("row", {}))
    row |= {key: spec[key] for key in ("instance_id", "repo", "patch", "image_assets", *_COPIED) if key in spec}
    row |= {column: list(spec[key]) for key, column in _LISTS.items()}
    return row | {"problem_statement": task.instruction}


def _made_row(task: Task, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """A row of a task of another kind. Raises TaskError when its metadata does not say what a row must."""
    missing = [key for key in ("fail_to_pass", "pass_to_pass", "gold_patch") if key not in metadata]
    if missing:
        raise TaskError(f"Its metadata has no {', '.join(missing)}, so it is no change that tests decide on.")
    if not task.files and not task.image:
        raise TaskError("It has neither files nor an image, so there is no repository.")
    row: dict[str, Any] = {
        "instance_id": str(metadata.get("instance_id") or folder_name(task.id)),
        "repo": str(metadata.get("repo") or f"local/{folder_name(task.id)}"),
        "problem_statement": task.instruction,
        "patch": metadata["gold_patch"],
    }
    row |= {key: metadata[key] for key in _COPIED if metadata.get(key)}
    row |= {column: list(metadata[key]) for key, column in _LISTS.items()}
    row.setdefault("test_patch", "")
    if "eval_script" not in row and (metadata.get("test_cmd") or not row["test_patch"]):
        files = list(dict.fromkeys(test.split("::")[0] for column in _LISTS.values() for test in row[column]))
        command = metadata.get("test_cmd") or "python3 -m pytest -rA"
        command = command if isinstance(command, str) else " ".join(command)
        row["eval_script"] = eval_script(row["repo"], row["test_patch"], "", files, command)
    return row
