"""Shared by formats whose rows describe a change to a repository: SWE-bench and data sets with its columns.

The repository is in the row's image, at a path that becomes the task's home. If a row has `base_files`, it is
in the row. Either way its history ends where the task begins.
"""

import functools
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from harnessgym.errors import TaskError
from harnessgym.task import Limits, Setup, Solution, Task
from harnessgym.tasks.format import LoadedTasks, without_doubles
from harnessgym.tasks.rows import TaskRow, read_rows

LIMITS = Limits(wall_s=3_600.0, turns=250, memory_mb=8_192, processes=1_024, disk_mb=8_192, cpus=2.0)
"""Limits of an agent. Test suites of large repositories need that much."""
GOLD = ".gold.patch"
_SETUP_S = 900.0
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*\Z")
_JSON = (str, int, float, bool, list, dict, type(None))


def read_set(
    path: Path,
    known: frozenset[str],
    task: Callable[[TaskRow, str], Task],
    rows: Sequence[TaskRow] | None = None,
) -> LoadedTasks:
    """Reads every row as a task. A malformed row only adds a problem. `known` are the known columns."""
    name = path.resolve().stem if path.is_file() else path.resolve().name
    task_rows = read_rows(path) if rows is None else None
    problems = list(task_rows.problems) if task_rows is not None else []
    tasks: list[Task] = []
    unknown: dict[str, str] = {}
    for row in task_rows.rows if task_rows is not None else rows or ():
        for key in row.values.keys() - known:
            unknown.setdefault(key, row.where)
        try:
            tasks.append(task(row, name))
        except TaskError as error:
            problems.append(str(error))
    kept, doubles = without_doubles(tasks, path)
    notes = [
        f"{where}: the key {key!r} means nothing here. It is kept in the task's metadata."
        for key, where in sorted(unknown.items())
    ]
    return LoadedTasks(name, kept, (*problems, *doubles), tuple(notes))


def text(row: TaskRow, key: str, default: str | None = None) -> str:
    """A text column. Raises TaskError if it is not text, or if it is empty and there is no default."""
    value = row.values.get(key)
    if value is None and default is not None:
        return default
    if not isinstance(value, str) or (not value.strip() and default is None):
        what = "is missing" if value is None else "is empty" if value == "" else f"is {str(value)[:40]!r}"
        raise TaskError(f"{row.where}: {key} {what}. Give text.")
    return value


def instance(row: TaskRow) -> str:
    """The row's id, which must be usable in names. Raises TaskError."""
    id_ = text(row, "instance_id")
    if _ID.match(id_) is None:
        raise TaskError(
            f"{row.where}: instance_id {id_[:80]!r} holds signs that no id has. Use letters, digits and "
            "`._+-`."
        )
    return id_


def ids_of(row: TaskRow, key: str, *, needed: bool = False) -> list[str]:
    """A column of test ids: a list, or a JSON text of one, as in older files. Raises TaskError."""
    value = row.values.get(key)
    if isinstance(value, str):
        try:
            value = json.loads(value) if value.strip() else []
        except ValueError as error:
            raise TaskError(
                f"{row.where}: {key} is text that is no JSON: {error}. Give a list of test ids."
            ) from None
    if value is None:
        value = []
    if not isinstance(value, list) or not set(map(type, value)) <= {str}:
        raise TaskError(
            f"{row.where}: {key} is {str(value)[:60]!r}. Give a list of test ids, or JSON of one."
        )
    if needed and not value:
        raise TaskError(f"{row.where}: {key} names no test, so nothing could be graded. Give at least one.")
    return value


def rest(row: TaskRow, used: Iterable[str]) -> dict[str, Any]:
    """The columns that are not in `used`, as JSON values."""
    left = row.values.keys() - set(used)
    return {
        key: row.values[key] if isinstance(row.values[key], _JSON) else str(row.values[key])
        for key in sorted(left)
    }


def base_files(row: TaskRow) -> dict[str, str]:
    """The repository's files, if the row contains them."""
    value = row.values.get("base_files") or {}
    if isinstance(value, str):
        value = _json_object(row, "base_files", value)
    if not isinstance(value, Mapping) or not all(
        isinstance(each, str) for pair in value.items() for each in pair
    ):
        raise TaskError(f"{row.where}: base_files must map paths to texts.")
    return dict(value)


def _json_object(row: TaskRow, key: str, value: str) -> Any:
    try:
        return json.loads(value)
    except ValueError as error:
        raise TaskError(f"{row.where}: {key} is no JSON: {error}.") from None


def gold(patch: str) -> Solution | None:
    """A solution that applies a patch; None for an empty patch."""
    if not patch.strip():
        return None
    apply = f"git apply --whitespace=nowarn {GOLD}; result=$?; rm -f {GOLD}; exit $result"
    return Solution({GOLD: patch if patch.endswith("\n") else f"{patch}\n"}, (("sh", "-c", apply),))


def scrubbed(base_commit: str) -> Setup:
    """A set-up that removes everything after a commit from the workspace's repository."""
    return Setup((("sh", "-c", _script("scrub.sh"), "scrub", base_commit),), timeout_s=_SETUP_S)


def begun(*before: tuple[str, ...], ignored: bool = False) -> Setup:
    """A set-up that makes a repository of the workspace's files, git-ignored ones too with `ignored`."""
    how = ("--force",) if ignored else ()
    return Setup((*before, ("sh", "-c", _script("begin.sh"), "begin", *how)), timeout_s=_SETUP_S)


@functools.cache
def _script(name: str) -> str:
    return (files("harnessgym.tasks") / name).read_text(encoding="utf-8")
