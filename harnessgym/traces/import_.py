"""The contract of an import: rollouts of another project become rows of the store, in a new run.

    import_traces(store, Path("trajectory.json"), "atif")

Each member of `imports/` is one format. Ids that are ours and not in the store yet are kept, so that an
export can be restored; all others are replaced by new ids. Fields without a column are left out and counted.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from sqlalchemy import Connection

from harnessgym.errors import TraceError
from harnessgym.registry import load
from harnessgym.store import TraceStore, runs

Json = dict[str, Any]


class Import(Protocol):
    """One format."""

    def read(self, conn: Connection, run_id: str, document: Json) -> "ImportedRollout":
        """Write the rollout of one document. Raises `TraceError` if the document is not in the format."""
        ...


@dataclass(frozen=True, slots=True)
class ImportedRollout:
    """The result of importing one document."""

    id: str
    left_out: Mapping[str, int] = field(default_factory=dict)
    """Fields that have no column, and how often they had a value."""


@dataclass(frozen=True, slots=True)
class Imported:
    """The result of an import."""

    run_id: str
    rollouts: tuple[str, ...]
    left_out: Mapping[str, int]


def import_traces(
    store: TraceStore,
    source: Path,
    format: str,  # noqa: A002
    name: str = "import",
) -> Imported:
    """Read a `.json` document, a `.jsonl` file, or a folder of `.json` files into a new run.

    Each document is one transaction, so the documents before a faulty one stay. Raises `TraceError` for a
    document that is not in the format, and `ConfigError` for an unknown format.
    """
    member: Import = load("import", format)()
    run_id = store.write(
        lambda conn: runs.add(conn, name, {"import": {"format": format}}, "import", "training")
    )
    made = list[str]()
    left_out = Counter[str]()
    try:
        for where, text in _documents(source):
            document = _parsed(text, where)
            try:
                rollout = store.write(partial(member.read, run_id=run_id, document=document))
            except TraceError as error:
                raise TraceError(f"{where}: {error}") from error
            made.append(rollout.id)
            left_out.update(rollout.left_out)
    finally:
        # After an error too: the documents before it stay, and only a run that is done can be pruned.
        store.write(lambda conn: runs.set_status(conn, run_id, "done"))
    return Imported(run_id, tuple(made), left_out)


def _documents(source: Path) -> Iterator[tuple[str, str]]:
    """Yield the location and the text of each document."""
    if source.is_dir():
        for path in sorted(source.glob("*.json")):
            yield str(path), path.read_text(encoding="utf-8")
    elif not source.is_file():
        raise TraceError(
            f"There is nothing to import at {source}: name a .json file, a .jsonl file or a folder of .json "
            "files."
        )
    elif source.suffix == ".jsonl":
        with source.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield f"{source}, line {number}", line
    else:
        yield str(source), source.read_text(encoding="utf-8")


def _parsed(text: str, where: str) -> Json:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise TraceError(f"{where}: not JSON: {error}.") from error
    if not isinstance(value, dict):
        raise TraceError(f"{where}: a document is an object.")
    return value
