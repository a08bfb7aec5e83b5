"""Tasks as SWE-bench rows: a line of `tasks.jsonl` for each, as `harnessgym.tasks.swe_bench` reads it.

For tasks of that format, and for others whose metadata says what a row says: `fail_to_pass`, `pass_to_pass`,
`test_patch`, `gold_patch`, and, where they are known, `repo`, `version`, `base_commit`, `test_cmd`,
`eval_script`, `log_parser`.

Tests that judge must be of the test patch, for what the agent does to all others stands. Where there is none,
the files in `test_files` become it: the row's repository is without them, and grading lays them. Other rows
of that kind are refused.
"""

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harnessgym.errors import TaskError
from harnessgym.grading.patches import new_files, patched_paths
from harnessgym.grading.verifiers.eval_script import eval_script
from harnessgym.task import Task
from harnessgym.tasks.rows import TaskRow
from harnessgym.tasks.swe_bench import swe_bench_task
from harnessgym.tasks.writing import folder_name

FILE = "tasks.jsonl"
_COPIED = ("version", "base_commit", "test_patch", "eval_script", "log_parser", "eval_type")
_LEFT_OUT = ("version", "base_commit", "eval_script", "image_assets")
"""Columns that are not written when they are empty."""
_LISTS = {"fail_to_pass": "FAIL_TO_PASS", "pass_to_pass": "PASS_TO_PASS"}
_SPACED = "parse_log_pytest_v2"
"""Reads ids that hold spaces."""
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
            notes.append(
                f"The image is built from {task.image.removeprefix('context:')}, which the row only names."
            )
        if task.image is not None:
            row["image"] = task.image
        if task.files:
            row.setdefault("base_files", dict(task.files))
            notes.append(_BASE_FILES)
        row = {key: value for key, value in row.items() if value or key not in _LEFT_OUT}
        swe_bench_task(TaskRow("The row", row), "")  # refuses what could not be read again
        with (folder / FILE).open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(row, ensure_ascii=False) + "\n")
        return notes


def _own_row(task: Task, spec: Mapping[str, Any]) -> dict[str, Any]:
    """The row that a task of this format was read from."""
    row: dict[str, Any] = dict(task.metadata.get("row", {}))
    row |= {
        key: spec[key] for key in ("instance_id", "repo", "patch", "image_assets", *_COPIED) if key in spec
    }
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
    files = list(
        dict.fromkeys(
            test.split("::")[0] for column in _LISTS.values() for test in row[column] if "::" in test
        )
    )
    if not row.get("test_patch"):
        row |= _with_tests_of(task, metadata)
    _check_owned(row, files)
    if "eval_script" not in row and (metadata.get("test_cmd") or "base_files" in row):
        row["eval_script"] = eval_script(row["repo"], row["test_patch"], "", files, _command(metadata))
        if "log_parser" not in row and any(" " in test for column in _LISTS.values() for test in row[column]):
            row |= {column: [" ".join(test.split()) for test in row[column]] for column in _LISTS.values()}
            row["log_parser"] = _SPACED
    return row


def _with_tests_of(task: Task, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of a task whose judging tests are its `test_files`: a patch that makes them, and the
    files without them.
    """
    tests = metadata.get("test_files") or {}
    if task.image is not None or not isinstance(tests, Mapping) or not tests:
        return {"test_patch": ""}
    solved = sorted(set(patched_paths(metadata["gold_patch"])) & set(tests))
    if solved:
        raise TaskError(f"Its gold_patch changes {solved[0]}, which is one of the tests that judge it.")
    left = {path: text for path, text in task.files.items() if path not in tests}
    if not left:
        raise TaskError("Its files are the tests that judge it and nothing else, so there is no repository.")
    columns: dict[str, Any] = {"test_patch": new_files(tests), "base_files": left}
    return columns | (
        {"problem_statement": metadata["problem_statement"]} if metadata.get("problem_statement") else {}
    )


def _check_owned(row: Mapping[str, Any], files: Sequence[str]) -> None:
    """Raises TaskError when an agent could get the reward by editing the tests that judge."""
    owned = set(patched_paths(row["test_patch"]))
    free = sorted(set(files) - owned) if owned else [*files, "the tests"]
    if free:
        raise TaskError(
            f"No test patch has {free[0]}, so whoever edits it is rewarded. Give metadata['test_patch'], or "
            "the pristine tests "
            "as metadata['test_files']."
        )


def _command(metadata: Mapping[str, Any]) -> str:
    """What runs tests. Those of a `pytest` check run without settings and fixtures of the workspace, as it
    runs them.
    """
    given = metadata.get("test_cmd")
    if given:
        return given if isinstance(given, str) else " ".join(given)
    check = next((check for check in metadata.get("tests") or () if check.get("kind") == "pytest"), None)
    if check is None:
        return "python3 -m pytest -rA"
    sources = ":".join(check.get("sources") or ())
    before = f"PYTHONPATH={shlex.quote(sources)} " if sources else ""
    return f"{before}python3 -m pytest -rA -c /dev/null --rootdir=. --noconftest"
