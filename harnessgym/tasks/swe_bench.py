"""SWE-bench rows: an issue of a repository, the commit before its fix, and tests for the fix.

    {"instance_id": "astropy__astropy-12907", "repo": "astropy/astropy", "base_commit": "d16b...",
     "version": "4.3", "problem_statement": "...", "patch": "diff --git ...",
     "test_patch": "diff --git ...", "FAIL_TO_PASS": ["..."] (or JSON of it), "PASS_TO_PASS": [...]}

Version 5 adds `eval_script`, `image` (or `image_name`), `log_parser`, `eval_type` and `image_assets`. Rows
without them get the image's conventional name and the repository's usual command. `base_files` (path to text)
is a column of ours that replaces the image: the repository then consists of these files. Grading reads
`metadata["swe_bench"]`; its keys are below.
"""

import json
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harnessgym.errors import TaskError
from harnessgym.grading.log import is_known, parser_named
from harnessgym.grading.verifiers.evaluation import eval_type_of, parser_of
from harnessgym.task import Task
from harnessgym.tasks.format import LoadedTasks
from harnessgym.tasks.rows import TaskRow, first_row
from harnessgym.tasks.swe_task import (
    LIMITS,
    base_files,
    begun,
    gold,
    ids_of,
    instance,
    read_set,
    rest,
    scrubbed,
    text,
)

GRADER = "harnessgym.grading.verifiers.swe_bench:verifier"
HOME = "/testbed"
MARKS = frozenset({"instance_id", "problem_statement", "test_patch", "FAIL_TO_PASS"})
"""Columns that every SWE-bench-like row has."""
USED = frozenset({
    "instance_id", "repo", "base_commit", "version", "patch", "test_patch", "problem_statement",
    "FAIL_TO_PASS", "PASS_TO_PASS",
    "eval_script", "image", "image_name", "log_parser", "eval_type", "image_assets", "base_files", "split",
})  # fmt: skip
"""Columns that become fields of a task."""
KNOWN = USED | {"hints_text", "created_at", "environment_setup_commit", "difficulty", "datasets"}
_EVAL_TYPES = ("pass_and_fail", "fail_only")


class SweBench:
    """The format: a file or folder of rows."""

    def recognises(self, path: Path) -> bool:
        """Looks at the columns of the first row."""
        row = first_row(path)
        return row is not None and row.keys() >= MARKS and "install_config" not in row

    def read(self, path: Path) -> LoadedTasks:
        """Reads the tasks in the order of the rows."""
        return read_set(path, KNOWN, swe_bench_task)


def swe_bench_task(row: TaskRow, name: str) -> Task:
    """The task of one row. Raises TaskError with the row, the key, and what to do."""
    columns = row.values
    laid = base_files(row)
    id_ = instance(row)
    patch = text(row, "patch", "")
    repo = text(row, "repo", "")
    spec = specification(row, laid=bool(laid))
    image = columns.get("image") or columns.get("image_name") or (None if laid else image_name(id_))
    if image is not None and not isinstance(image, str):
        raise TaskError(f"{row.where}: image is {str(image)[:40]!r}. Give the name of an image.")
    return Task(
        id=f"{name}/{id_}",
        instruction=text(row, "problem_statement"),
        split=columns["split"] if columns.get("split") in ("train", "test") else row.split,
        files=laid,
        image=image,
        limits=LIMITS,
        setup=begun(ignored=True) if laid else scrubbed(text(row, "base_commit")),
        grader=GRADER,
        solution=gold(patch),
        metadata={"swe_bench": {**spec, "patch": patch, "repo": repo}, "row": rest(row, USED)},
        home="" if laid else HOME,
    )


def specification(row: TaskRow, *, laid: bool) -> dict[str, Any]:
    """The data for grading: expected tests, how to run them, and how to read their log. Raises TaskError."""
    repo = text(row, "repo", "")
    test_patch = text(row, "test_patch", "")
    fail_to_pass = ids_of(row, "FAIL_TO_PASS", needed=True)
    parser = text(row, "log_parser", "") or parser_of(repo)
    if not is_known(parser):
        try:
            parser_named(parser)
        except TaskError as error:
            raise TaskError(f"{row.where}: log_parser: {error}") from None
    eval_type = text(row, "eval_type", "") or eval_type_of(repo)
    if eval_type not in _EVAL_TYPES:
        raise TaskError(f"{row.where}: eval_type is {eval_type!r}. Give one of: {', '.join(_EVAL_TYPES)}.")
    script = text(row, "eval_script", "")
    if not test_patch.strip() and not script:
        raise TaskError(
            f"{row.where}: test_patch is empty, and there is no eval_script, so no tests are known. Give one "
            "of them."
        )
    return {
        "instance_id": row.values["instance_id"],
        "version": text(row, "version", ""),
        "base_commit": text(row, "base_commit", ""),
        "test_patch": test_patch,
        "fail_to_pass": fail_to_pass,
        "pass_to_pass": ids_of(row, "PASS_TO_PASS"),
        "eval_script": script,
        "home": "" if laid else HOME,
        "log_parser": parser,
        "eval_type": eval_type,
        "image_assets": _assets(row),
    }


def image_name(instance_id: str, namespace: str = "", arch: str = "", tag: str = "latest") -> str:
    """The conventional name of an instance's image.

    `namespace`, such as `swebench`, belongs to a registry, which does not allow `__` in names.
    """
    machine = arch or ("arm64" if platform.machine() in ("aarch64", "arm64") else "x86_64")
    name = f"sweb.eval.{machine}.{instance_id}:{tag}"
    return (f"{namespace}/{name}".replace("__", "_1776_") if namespace else name).lower()


def _assets(row: TaskRow) -> dict[str, list[dict[str, str]]]:
    """Binary files that patches need: patch to a list of `path` and `url`."""
    value = row.values.get("image_assets") or {}
    try:
        value = json.loads(value) if isinstance(value, str) else value
        return {
            key: [{"path": each["path"], "url": each.get("url") or ""} for each in value.get(key) or ()]
            for key in ("test_patch", "patch")
            if value.get(key)
        }
    except (ValueError, AttributeError, TypeError, KeyError):
        raise TaskError(
            f"{row.where}: image_assets must map `test_patch` and `patch` to lists of objects with a path."
        ) from None


def spec_of(task: Task) -> Mapping[str, Any]:
    """The data for grading a task of this format. Raises TaskError for a task of another format."""
    spec = task.metadata.get("swe_bench")
    if not isinstance(spec, Mapping):
        raise TaskError(f"Task {task.id!r} has no metadata['swe_bench']. It is no task of SWE-bench rows.")
    return spec
