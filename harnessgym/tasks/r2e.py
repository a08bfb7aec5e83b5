"""R2E-Gym rows: a commit of a Python repository as an issue, with the expected results of its tests.

    {"docker_image": "namanjain12/sympy_final:0030...", "repo_name": "sympy",
     "parsed_commit_content": "{...}", "problem_statement": "[ISSUE] ...",
     "expected_output_json": (JSON of) {"test_a": "PASSED", "TestB.test_c": "FAILED"}}

In the image the repository is at `/testbed`, with `run_tests.sh` in it, and the tests are at `/r2e_tests`. An
agent can read neither of them, nor the history. Every test must have its expected status, failures included.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harnessgym.errors import TaskError
from harnessgym.task import Task
from harnessgym.tasks.format import LoadedTasks
from harnessgym.tasks.rows import TaskRow, first_row
from harnessgym.tasks.swe_bench import HOME
from harnessgym.tasks.swe_task import LIMITS, begun, read_set, rest, text

GRADER = "harnessgym.grading.verifiers.r2e:verifier"
TESTS = "/r2e_tests"
"""Folder of the tests. Only root can read it, in the agent's image too."""
HIDDEN = (
    "run_tests.sh", "r2e_tests", "syn_issue.json", "expected_test_output.json", "execution_result.json",
    "parsed_commit.json",
    "modified_files.json", "modified_entities.json",
)  # fmt: skip
"""Files that images have in the repository and that would reveal the answer, or do not concern the agent."""
USED = frozenset({"docker_image", "repo_name", "expected_output_json", "problem_statement"})
KNOWN = USED | {
    "parsed_commit_content", "commit_hash", "execution_result_content", "modified_files",
    "modified_entity_summaries",
    "relevant_files", "num_non_test_files", "num_non_test_func_methods", "num_non_test_lines", "prompt",
}  # fmt: skip
_ISSUE = re.compile(r"\[ISSUE\](.*)\[/ISSUE\]", re.DOTALL)
_HIDE = ("sh", "-c", 'rm -rf -- "$@"; find . -name "*.pyc" -not -path "./.venv/*" -delete', "hide", *HIDDEN)
_CLOSE = f"if [ -d {TESTS} ]; then chown root:root {TESTS} && chmod 0700 {TESTS}; fi"


class R2e:
    """The format: a file or folder of rows."""

    def recognises(self, path: Path) -> bool:
        """Looks at the columns of the first row."""
        row = first_row(path)
        return row is not None and row.keys() >= USED

    def read(self, path: Path) -> LoadedTasks:
        """Reads the tasks in the order of the rows."""
        return read_set(path, KNOWN, r2e_task)


def r2e_task(row: TaskRow, name: str) -> Task:
    """The task of one row. Raises TaskError with the row, the key, and what to do."""
    image = text(row, "docker_image")
    repo = text(row, "repo_name")
    commit = row.values.get("commit_hash") or _commit(row) or image.rpartition(":")[2]
    issue = _ISSUE.search(text(row, "problem_statement"))
    return Task(
        id=f"{name}/{repo}-{str(commit)[:12]}",
        instruction=issue[1].strip() if issue else text(row, "problem_statement"),
        split=row.split,
        image=image,
        limits=LIMITS,
        setup=begun(_HIDE, ("rm", "-rf", ".git")),
        grader=GRADER,
        metadata={
            "r2e": {"repo_name": repo, "expected": _expected(row), "tests": TESTS},
            "row": rest(row, USED),
        },
        home=HOME,
        install=(("sh", "-c", _CLOSE),),
    )


def _expected(row: TaskRow) -> dict[str, str]:
    value: Any = row.values["expected_output_json"]
    try:
        value = json.loads(value) if isinstance(value, str) else value
    except ValueError as error:
        raise TaskError(
            f"{row.where}: expected_output_json is no JSON: {error}. Give an object of test to status."
        ) from None
    if (
        not isinstance(value, Mapping)
        or not value
        or not all(isinstance(each, str) for each in value.values())
    ):
        raise TaskError(
            f"{row.where}: expected_output_json must be an object of test to status, such as PASSED, and not "
            "empty."
        )
    return dict(value)


def _commit(row: TaskRow) -> str:
    """The commit's hash in `parsed_commit_content`; empty if there is none."""
    value = row.values.get("parsed_commit_content")
    try:
        parsed = json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return ""
    commit_hash = (
        parsed.get("new_commit_hash") or parsed.get("commit_hash") if isinstance(parsed, Mapping) else ""
    )
    return commit_hash if isinstance(commit_hash, str) else ""
