"""The manifest: every task as its fault and what that was proved to do. One JSON-lines file a package, in
`tasks/`.

The first line says the package and its tests; each further one is a task, which names tests by their place in
that list. The folder has the name under which a sandbox hides the tasks that are installed with HarnessGym.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from environments.swe.edit import SourceEdit
from environments.swe.package import SourcePackage
from harnessgym.errors import TaskError

FOLDER = Path(__file__).with_name("tasks")


@dataclass(frozen=True, slots=True)
class ManifestTask:
    """One task."""

    number: int
    kinds: tuple[str, ...]
    """Of its faults."""
    functions: tuple[str, ...]
    """That they are in."""
    edits: tuple[SourceEdit, ...]
    """What makes the package faulty."""
    failing: tuple[str, ...]
    """Tests that pass without the faults and fail with them, every time."""
    statement: str


@dataclass(frozen=True, slots=True)
class PackageManifest:
    """The tasks of a package."""

    package: str
    version: str
    sha256: str
    seed: int
    tests: tuple[str, ...]
    """Every test that passes without a fault, every time."""
    without: tuple[str, ...]
    """Tests in the same files that cannot be relied on."""
    entries: tuple[ManifestTask, ...]


def write(manifest: PackageManifest, folder: Path = FOLDER) -> Path:
    """Writes a manifest, all or nothing."""
    places = {test: place for place, test in enumerate(manifest.tests)}
    head = {key: value for key, value in asdict(manifest).items() if key != "entries"}
    rows: list[dict[str, Any]] = [head]
    for entry in manifest.entries:
        row = {**asdict(entry), "failing": [places[test] for test in entry.failing]}
        row["edits"] = [[edit.path, edit.start, edit.old, edit.new] for edit in entry.edits]
        rows.append(row)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{manifest.package}.jsonl"
    new = folder / f".{manifest.package}.{os.getpid()}"
    new.write_text("".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows), encoding="utf-8")
    os.replace(new, path)
    return path


def read(package: SourcePackage, folder: Path = FOLDER) -> PackageManifest:
    """The manifest of a package. Raises TaskError when it is missing, malformed, or of another
    distribution.
    """
    path = folder / f"{package.name}.jsonl"
    remedy = f"Make it: `python -m environments.swe.generate --package {package.name}`."
    try:
        head, *rows = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
        tests = tuple(head["tests"])
        entries = tuple(_entry(row, tests) for row in rows)
        found = PackageManifest(
            **{**head, "tests": tests, "without": tuple(head["without"]), "entries": entries}
        )
    except FileNotFoundError:
        raise TaskError(f"There is no manifest {path}. {remedy}") from None
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise TaskError(f"The manifest {path} cannot be read: {error!r}. {remedy}") from error
    if (found.version, found.sha256) != (package.version, package.sha256):
        raise TaskError(
            f"{path} is of {package.name} {found.version}, and packages.toml pins {package.version}. {remedy}"
        )
    return found


def _entry(row: dict[str, Any], tests: Sequence[str]) -> ManifestTask:
    return ManifestTask(
        number=row["number"],
        kinds=tuple(row["kinds"]),
        functions=tuple(row["functions"]),
        edits=tuple(SourceEdit(*edit) for edit in row["edits"]),
        failing=tuple(tests[place] for place in row["failing"]),
        statement=row["statement"],
    )
