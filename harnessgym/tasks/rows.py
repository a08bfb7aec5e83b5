"""Reads the rows of data sets: JSON, JSON lines, Parquet, Arrow, or folders of these.

That includes what `datasets` saves to disk. A row is a mapping, with its place for messages. A malformed line
is a problem, and the other lines are still read.
"""

import codecs
import contextlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from harnessgym.errors import TaskError
from harnessgym.task import Split


def _loader() -> Callable[[bytes], Any]:
    """The JSON loader of orjson if it is installed (extra `proxy`, three times as fast), else of `json`."""
    try:
        from orjson import loads
    except ModuleNotFoundError:
        return json.loads
    return loads


_loads = _loader()
_LINES = (".jsonl", ".ndjson")
_SUFFIXES = (*_LINES, ".json", ".parquet", ".arrow")
_NO_ROWS = frozenset(
    {"dataset_info.json", "dataset_dict.json", "state.json", "dataset_infos.json", "package.json"}
)
_HELD_OUT = re.compile(r"(?:test|dev|validation|valid|val|eval)(?![a-z])")
"""Start of the names of files and folders whose rows are not for training."""
_HEAD = 1 << 20
"""Characters of a JSON file to search for the first row before the whole file is read."""
_CHUNK = 1_000
"""Rows of a Parquet file that are decoded at once."""


@dataclass(frozen=True, slots=True)
class TaskRow:
    """One row and its place."""

    where: str
    values: Mapping[str, Any]
    split: Split = "train"
    """The split, from the file's name."""


@dataclass(slots=True)
class TaskRows:
    """All rows of a path."""

    rows: list[TaskRow] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """A sentence for each malformed line."""


def read_rows(path: Path) -> TaskRows:
    """Reads the rows of a file or folder, in order.

    Raises TaskError if nothing can be read, or if a package is missing.
    """
    task_rows = TaskRows()
    for file in files_of(path):
        split = _split_of(file, path)
        for number, value in enumerate(_values(file, task_rows.problems), 1):
            where = f"{file}: row {number}"
            if isinstance(value, dict):
                task_rows.rows.append(TaskRow(where, value, split))
            elif value is not None:
                task_rows.problems.append(
                    f"{where} is no object but {str(value)[:40]!r}. Write an object with the row's columns."
                )
    return task_rows


def first_row(path: Path) -> Mapping[str, Any] | None:
    """The first row, read from the start of the first file; None if there is none or it cannot be read."""
    try:
        for file in islice(files_of(path), 8):
            reader = _first_line if file.suffix in _LINES else _first_value
            value = reader(file)
            if isinstance(value, dict):
                return value
    except (TaskError, OSError, ValueError):
        return None
    return None


def files_of(path: Path) -> list[Path]:
    """The files with rows: the path itself, or those in the folder, in its `data/`, and in its splits."""
    if path.is_file():
        return [path] if path.suffix in _SUFFIXES else []
    if not path.is_dir() or (path / "sweb.yaml").exists():
        return []
    folders = [path, path / "data", *sorted(each.parent for each in path.glob("*/dataset_info.json"))]
    files = [
        file
        for folder in dict.fromkeys(folders)
        for file in sorted(folder.glob("*"))
        if file.suffix in _SUFFIXES
    ]
    return [file for file in dict.fromkeys(files) if file.is_file() and file.name not in _NO_ROWS]


def _split_of(file: Path, path: Path) -> Split:
    names = [
        file.stem.lower(),
        *([file.parent.name.lower()] if path.is_dir() and file.parent != path else []),
    ]
    return "test" if any(map(_HELD_OUT.match, names)) else "train"


def _values(file: Path, problems: list[str]) -> Iterator[Any]:
    """The rows of a file; None for a row that was already added to `problems`."""
    if file.suffix in _LINES:
        yield from _lines(file, problems)
    elif file.suffix == ".json":
        yield from _array(file)
    elif file.suffix == ".parquet":
        yield from _parquet(file)
    else:
        yield from _arrow(file)


def _lines(file: Path, problems: list[str]) -> Iterator[Any]:
    for number, line in enumerate(_bytes(file).splitlines(), 1):
        if not line.strip():
            continue
        try:
            yield _loads(line)
        except ValueError as error:
            problems.append(f"{file}: line {number} is no JSON: {error}. Correct it, or remove the line.")
            yield None


def _array(file: Path) -> Iterator[Any]:
    try:
        value = _loads(_bytes(file))
    except ValueError as error:
        raise TaskError(
            f"{file} is no JSON: {error}. One object a line is JSON lines: name it .jsonl."
        ) from None
    # The form of the hub's viewer: a list `rows` of objects with the row in `row`.
    if isinstance(value, dict) and isinstance(value.get("rows"), list):
        value = [each.get("row", each) if isinstance(each, dict) else each for each in value["rows"]]
    yield from value if isinstance(value, list) else [value]


def _parquet(file: Path) -> Iterator[Any]:
    parquet = _pyarrow("parquet", file)
    try:
        for batch in parquet.ParquetFile(file).iter_batches(batch_size=_CHUNK):
            yield from batch.to_pylist()
    except (OSError, ValueError) as error:  # ArrowInvalid is a ValueError
        raise TaskError(f"{file} cannot be read as Parquet: {error}.") from error


def _arrow(file: Path) -> Iterator[Any]:
    """Reads a stream, as `datasets` saves to disk, or a file of record batches."""
    # Both have the suffix .arrow, and only reading tells them apart.
    ipc = _pyarrow("ipc", file)
    opening: list[Callable[[Any], Any]] = [ipc.open_stream, ipc.open_file]
    for number, opened in enumerate(opening):
        try:
            with file.open("rb") as source:
                table = opened(source).read_all()
        except (OSError, ValueError) as error:
            if number + 1 == len(opening):
                raise TaskError(f"{file} cannot be read as Arrow: {error}.") from error
            continue
        for batch in table.to_batches(max_chunksize=_CHUNK):
            yield from batch.to_pylist()
        return


def _pyarrow(module: str, file: Path) -> Any:
    import importlib

    try:
        return importlib.import_module(f"pyarrow.{module}")
    except ModuleNotFoundError as error:
        raise TaskError(
            f"{file} needs pyarrow to be read. Install it: pip install 'harnessgym-rl[export]'."
        ) from error


def _bytes(file: Path) -> bytes:
    """A file's content without a byte order mark, which not every JSON loader accepts."""
    try:
        return file.read_bytes().removeprefix(codecs.BOM_UTF8)
    except OSError as error:
        raise TaskError(f"{file} cannot be read: {error.strerror}.") from error


def _first_line(file: Path) -> Any:
    with file.open("rb") as lines:
        return next((json.loads(line) for line in lines if line.strip()), None)


def _first_value(file: Path) -> Any:
    if file.suffix == ".json":
        with file.open(encoding="utf-8", errors="replace") as text:
            head = text.read(_HEAD).lstrip("\ufeff \t\r\n")
        if head.startswith("["):
            # It fails if the first row is longer than the head; the whole file is read then.
            with contextlib.suppress(ValueError):
                return json.JSONDecoder().raw_decode(head[1:].lstrip())[0]
    return next(_values(file, []), None)
