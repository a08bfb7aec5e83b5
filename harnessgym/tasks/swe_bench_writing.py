"""Writes tasks as SWE-bench rows: one line of `tasks.jsonl` each, which `harnessgym.tasks.swe_bench` reads.

It writes tasks of that format, and others whose metadata has the data of a row: `fail_to_pass`,
`pass_to_pass`, `test_patch`, `gold_patch`, and, if known, `repo`, `version`, `base_commit`, `test_cmd`,
`eval_script`, `log_parser`.

The tests that grade must be part of the test patch, because the agent's changes to all other tests remain.
If there is no test patch, the files in `test_files` become one: the row's repository lacks them, and
grading adds them. Other tasks without a test patch are refused.
"""

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harnessgym.errors import TaskError
from harnessgym.grading.patches import new_files, patched_paths
from harnessgym.grading.verifiers.evaluation import INSTALLED_PYTEST, eval_script
from harnessgym.task import Task
from harnessgym.tasks.rows import TaskRow
from harnessgym.tasks.swe_bench import swe_bench_task
from harnessgym.tasks.writing import folder_name

FILE = "tasks.jsonl"
_COPIED = ("version", "base_commit", "test_patch", "eval_script", "log_parser", "eval_type")
_LEFT_OUT = ("version", "base_commit", "eval_script", "image_assets")
"""Columns that are left out if they are empty."""
_LISTS = {"fail_to_pass": "FAIL_TO_PASS", "pass_to_pass": "PASS_TO_PASS"}
_SPACED = "parse_log_pytest_v2"
"""Parser for ids with spaces."""
_BASE_FILES = (
    "base_files is a column of ours: other readers of SWE-bench rows want an image with the repository "
    "instead."
)


class SweBenchWriter:
    """Appends rows to a file."""

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
        # Read the row before it is written: it raises TaskError for what could not be read again.
        swe_bench_task(TaskRow("The row", row), "")
        with (folder / FILE).open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(row, ensure_ascii=False) + "\n")
        return notes


def _own_row(task: Task, spec: Mapping[str, Any]) -> dict[str, Any]:
    """The row from which a task of this format was read."""
    row: dict[str, Any] = dict(task.metadata.get("row", {}))
    row |= {
        key: spec[key] for key in ("instance_id", "repo", "patch", "image_assets", *_COPIED) if key in spec
    }
    row |= {column: list(spec[key]) for key, column in _LISTS.items()}
    return row | {"problem_statement": task.instruction}


def _made_row(task: Task, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """A row for a task of another format. Raises TaskError if its metadata lacks what a row needs."""
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
    """The columns of a task graded by its `test_files`: a patch that adds them, and the other files."""
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
    """Raises TaskError if an agent could get the reward by editing the tests."""
    owned = set(patched_paths(row["test_patch"]))
    free = sorted(set(files) - owned) if owned else [*files, "the tests"]
    if free:
        raise TaskError(
            f"No test patch has {free[0]}, so whoever edits it is rewarded. Give metadata['test_patch'], "
            "or the pristine tests as metadata['test_files']."
        )


def _command(metadata: Mapping[str, Any]) -> str:
    """The command that runs the tests.

    Like a `pytest` check, it ignores pytest settings and fixtures of the workspace.
    """
    test_command = metadata.get("test_cmd")
    if test_command:
        return test_command if isinstance(test_command, str) else " ".join(test_command)
    check = next((check for check in metadata.get("tests") or () if check.get("kind") == "pytest"), None)
    if check is None:
        return f"{INSTALLED_PYTEST} -rA"
    sources = ":".join(check.get("sources") or ())
    before = f"PYTHONPATH={shlex.quote(sources)} " if sources else ""
    return f"{before}{INSTALLED_PYTEST} -rA -c /dev/null --rootdir=. --noconftest"
