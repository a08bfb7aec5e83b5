"""Checks: the entries of a task's `tests`. Members live in `checks/` and are named by strings.

A check is a settings class with a `run`. It gets the exported workspace, the task's own test files, and a way
to open fresh sandboxes. The expected values stay on this machine wherever possible: the agent's code cannot
read what never enters a sandbox.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from harnessgym.config import Config, validate
from harnessgym.errors import ConfigError, TaskError
from harnessgym.grading.outcome import CheckOutcome
from harnessgym.grading.verifier import Opener
from harnessgym.registry import load, names
from harnessgym.task import Integrity

__all__ = ["Check", "CheckContext", "CheckOutcome", "read_checks"]


@dataclass(frozen=True, slots=True)
class CheckContext:
    """The inputs of a check."""

    workspace: Path
    """The exported workspace, on this machine."""
    open_sandbox: Opener
    """Opens a sandbox with the same files."""
    files: Mapping[str, str]
    """The task's test files: relative path to text."""
    where: str
    """The task and the test, for messages."""


class Check(Config):
    """Base class of every kind of check."""

    integrity: ClassVar[Integrity] = "by_value"
    """Whether the outcome is compared on this machine, or reported by what the agent's code can reach."""
    kind: str
    name: str = ""
    """Name in the evidence. If empty, the kind and the number of the check."""
    weight: float = Field(1.0, gt=0, allow_inf_nan=False)
    """Weight in a weighted reward."""
    timeout_s: float = Field(30.0, gt=0, le=3_600)
    """Seconds for each command. If the agent's code hangs, the check fails."""

    def problems(self, files: Collection[str]) -> Sequence[str]:  # noqa: ARG002
        """Mistakes in the settings, given the paths of the task's test files."""
        return ()

    async def run(self, context: CheckContext) -> CheckOutcome:
        """Runs the check.

        Raises SandboxError when a sandbox failed, TaskError when the task or its image is at fault.
        """
        raise NotImplementedError


def read_checks(raw: Sequence[Any], files: Collection[str], where: str) -> tuple[Check, ...]:
    """Reads a task's `tests` into checks. Raises TaskError with the file, the key and what to do."""
    checks = []
    for number, entry in enumerate(raw):
        at = f"{where}: tests[{number}]"
        kind = entry.get("kind") if isinstance(entry, Mapping) else None
        if not isinstance(kind, str):
            raise TaskError(
                f'{at} has no kind. Write `kind = "..."` with one of: {", ".join(names("check"))}.'
            )
        try:
            check: Check = validate(load("check", kind), dict(entry), at)
        except ConfigError as error:
            raise TaskError(str(error) if at in str(error) else f"{at}: {error}") from error
        problems = check.problems(files)
        if problems:
            raise TaskError(f"{at} ({kind}) cannot work:\n  " + "\n  ".join(problems))
        checks.append(check)
    if not checks:
        raise TaskError(f"{where}: tests: there are none, so nothing could be graded. Add a [[tests]] table.")
    return tuple(checks)
