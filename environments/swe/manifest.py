"""The manifest of a package: its tasks with their faults and proofs. One JSON-lines file each, in `tasks/`.

The first line has the package and its tests. Each further line is a task, which names tests by their index
in that list. Sandboxes hide folders of this name, so that agents cannot read the tasks installed with
HarnessGym.
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
from harnessgym.grading.by_value.calls import PlannedCall
from harnessgym.grading.by_value.plan import JudgementPlan, PlannedTest

FOLDER = Path(__file__).with_name("tasks")


@dataclass(frozen=True, slots=True)
class ManifestTask:
    """One task."""

    number: int
    kinds: tuple[str, ...]
    """Kinds of its faults."""
    functions: tuple[str, ...]
    """Functions with the faults."""
    edits: tuple[SourceEdit, ...]
    """The edits that make the package faulty."""
    failing: tuple[str, ...]
    """Tests that always pass without the faults and always fail with them."""
    statement: str
    plan: JudgementPlan | None = None
    """How the task is judged by value; None if that was not planned."""


@dataclass(frozen=True, slots=True)
class PackageManifest:
    """The tasks of a package."""

    package: str
    version: str
    sha256: str
    seed: int
    tests: tuple[str, ...]
    """Tests that always pass without a fault."""
    without: tuple[str, ...]
    """Unreliable tests in the same files."""
    entries: tuple[ManifestTask, ...]


def write(manifest: PackageManifest, folder: Path = FOLDER) -> Path:
    """Writes a manifest atomically."""
    places = {test: place for place, test in enumerate(manifest.tests)}
    head = {key: value for key, value in asdict(manifest).items() if key != "entries"}
    rows: list[dict[str, Any]] = [head]
    for entry in manifest.entries:
        row = {**asdict(entry), "failing": [places[test] for test in entry.failing]}
        row["edits"] = [[edit.path, edit.start, edit.old, edit.new] for edit in entry.edits]
        row["plan"] = None if entry.plan is None else _written(entry.plan)
        rows.append(row)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{manifest.package}.jsonl"
    new = folder / f".{manifest.package}.{os.getpid()}"
    new.write_text("".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows), encoding="utf-8")
    os.replace(new, path)
    return path


def read(package: SourcePackage, folder: Path = FOLDER) -> PackageManifest:
    """Reads the manifest of a package.

    Raises TaskError if it is missing, malformed, or belongs to another distribution.
    """
    path = folder / f"{package.name}.jsonl"
    remedy = f"Make it: `python -m environments.swe.generate --package {package.name}`."
    try:
        head, *rows = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
        tests = tuple(head["tests"])
        entries = tuple(_entry(row, tests) for row in rows)
        manifest = PackageManifest(
            **{**head, "tests": tests, "without": tuple(head["without"]), "entries": entries}
        )
    except FileNotFoundError:
        raise TaskError(f"There is no manifest {path}. {remedy}") from None
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise TaskError(f"The manifest {path} cannot be read: {error!r}. {remedy}") from error
    if (manifest.version, manifest.sha256) != (package.version, package.sha256):
        raise TaskError(
            f"{path} is of {package.name} {manifest.version}, and packages.toml pins "
            f"{package.version}. {remedy}"
        )
    return manifest


def _entry(row: dict[str, Any], tests: Sequence[str]) -> ManifestTask:
    return ManifestTask(
        number=row["number"],
        kinds=tuple(row["kinds"]),
        functions=tuple(row["functions"]),
        edits=tuple(SourceEdit(*edit) for edit in row["edits"]),
        failing=tuple(tests[place] for place in row["failing"]),
        statement=row["statement"],
        plan=None if row.get("plan") is None else _plan(row["plan"]),
    )


def _written(plan: JudgementPlan) -> dict[str, Any]:
    return {
        "tests": [[test.file, test.function, test.telling, test.forms] for test in plan.tests],
        "calls": [[call.module, call.function, call.args, call.kwargs, call.new] for call in plan.calls],
    }


def _plan(row: dict[str, Any]) -> JudgementPlan:
    tests = tuple(
        PlannedTest(file, function, telling, tuple(forms)) for file, function, telling, forms in row["tests"]
    )
    return JudgementPlan(tests, tuple(PlannedCall(*each) for each in row["calls"]))
