"""Records the arguments with which tests call functions: jobs for `runners/tracing.py`, and its answers."""

from collections.abc import Iterable, Sequence
from typing import Any

from harnessgym.grading.differential.functions import Function
from harnessgym.grading.differential.inputs import FunctionCall
from harnessgym.grading.differential.suite import Probe, program


def recording_job(functions: Iterable[Function], roots: Iterable[str], most: int) -> dict[str, Any]:
    """A job that records at most `most` calls of each function. It has no tests yet.

    `roots` are the folders to import from.
    """
    targets: dict[str, dict[str, str]] = {}
    classes: dict[str, list[str]] = {}
    for function in functions:
        targets.setdefault(function.file, {})[str(function.line)] = function.name
        owner = function.name.rpartition(".")[0]
        if owner and owner not in classes.setdefault(function.file, []):
            classes[function.file].append(owner)
    job = {"targets": targets, "classes": classes, "roots": list(roots), "most": most}
    return {**job, "encoding": program("encoding"), "files": {}, "order": [], "own": []}


def recorded_calls(runs: Sequence[Probe]) -> dict[tuple[str, str], list[FunctionCall]]:
    """The recorded calls, by file and name of the function."""
    calls: dict[tuple[str, str], list[FunctionCall]] = {}
    for line in (line for run in runs for line in run.lines if "call" in line):
        call = line["call"]
        made = FunctionCall(call["args"], call["kwargs"], call["new"], seen=True)
        calls.setdefault((line["file"], line["function"]), []).append(made)
    return calls
