"""SWE-rebench V2 rows: SWE-bench's columns, and how to test a repository of any language.

    {..., "language": "go", "image_name": "docker.io/swerebenchv2/...", "install_config":
     {"test_cmd": ["go test -v ./..."], "log_parser": "parse_log_gotest", "install": [...],
      "base_image_name": "..."}}

The repository is at `/<its name>` in the image. A task is solved if the tests that pass are exactly those of
FAIL_TO_PASS and PASS_TO_PASS. Durations at the end of names do not count.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harnessgym.errors import TaskError
from harnessgym.grading.log import is_known, parser_named
from harnessgym.task import Task
from harnessgym.tasks.format import LoadedTasks
from harnessgym.tasks.rows import TaskRow, first_row
from harnessgym.tasks.swe_bench import MARKS
from harnessgym.tasks.swe_task import LIMITS, gold, ids_of, instance, read_set, rest, scrubbed, text

GRADER = "harnessgym.grading.verifiers.swe_rebench:verifier"
USED = frozenset({
    "instance_id", "repo", "base_commit", "patch", "test_patch", "problem_statement", "FAIL_TO_PASS",
    "PASS_TO_PASS",
    "image_name", "install_config",
})  # fmt: skip
KNOWN = USED | {
    "pr_description", "interface", "language", "created_at", "meta", "hints_text", "version",
    "environment_setup_commit", "license_name",
}  # fmt: skip


class SweRebench:
    """The format: a file or folder of rows."""

    def recognises(self, path: Path) -> bool:
        """Looks at the columns of the first row."""
        row = first_row(path)
        return row is not None and row.keys() >= MARKS | {"install_config"}

    def read(self, path: Path) -> LoadedTasks:
        """Reads the tasks in the order of the rows."""
        return read_set(path, KNOWN, swe_rebench_task)


def swe_rebench_task(row: TaskRow, name: str) -> Task:
    """The task of one row. Raises TaskError with the row, the key, and what to do."""
    id_ = instance(row)
    patch = text(row, "patch", "")
    owner, slash, repo = text(row, "repo").partition("/")
    if not (owner and slash and repo) or "/" in repo or repo in (".", ".."):
        raise TaskError(
            f"{row.where}: repo is {text(row, 'repo')[:60]!r}. Give `owner/name`: the name is where the "
            "repository lies."
        )
    spec = {
        "instance_id": id_,
        "test_patch": text(row, "test_patch"),
        "fail_to_pass": ids_of(row, "FAIL_TO_PASS", needed=True),
        "pass_to_pass": ids_of(row, "PASS_TO_PASS"),
        "patch": patch,
        **_run(row),
    }
    return Task(
        id=f"{name}/{id_}",
        instruction=text(row, "problem_statement"),
        split=row.split,
        image=text(row, "image_name"),
        limits=LIMITS,
        setup=scrubbed(text(row, "base_commit")),
        grader=GRADER,
        solution=gold(patch),
        metadata={"swe_rebench": spec, "row": rest(row, USED)},
        home=f"/{repo}",
    )


def _run(row: TaskRow) -> dict[str, Any]:
    """The commands that run the tests, and the parser for their output."""
    config = row.values.get("install_config")
    if not isinstance(config, Mapping):
        raise TaskError(f"{row.where}: install_config must be an object with test_cmd and log_parser.")
    commands = config.get("test_cmd")
    commands = [commands] if isinstance(commands, str) else commands
    if not isinstance(commands, list) or not any(isinstance(each, str) and each.strip() for each in commands):
        raise TaskError(
            f"{row.where}: install_config.test_cmd is {str(commands)[:60]!r}. Give the commands that run the "
            "tests."
        )
    parser = config.get("log_parser")
    if not isinstance(parser, str) or not is_known(parser):
        try:
            parser_named(str(parser))
        except TaskError as error:
            raise TaskError(f"{row.where}: install_config.log_parser: {error}") from None
    return {
        "test_cmd": [each for each in commands if isinstance(each, str) and each.strip()],
        "log_parser": parser,
    }
