"""Checks: what one entry of a task's tests is. Members live in `checks/` and are named by strings.

A check is a settings class with a `run`. It sees the exported workspace, the task's own test files, and a way
to open fresh sandboxes. What it expects stays on this machine wherever that is possible: what never enters a
sandbox cannot be read there.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from harnessgym.config import Config, validate
from harnessgym.errors import ConfigError, TaskError
from harnessgym.grading.outcome import CheckOutcome
from harnessgym.grading.verifier import Opener
from harnessgym.registry import load, names

__all__ = ["Check", "CheckContext", "CheckOutcome", "read_checks"]


@dataclass(frozen=True, slots=True)
class CheckContext:
    """What a check works with."""

    workspace: Path
    """The exported workspace, on this machine."""
    place: Opener
    """Opens a sandbox that holds the same."""
    files: Mapping[str, str]
    """The task's test files: relative path to text."""
    where: str
    """Which task's which test this is, for messages."""


class Check(Config):
    """Base of every kind."""

    kind: str
    name: str = ""
    """What it is called in the evidence; its kind and number, if empty."""
    weight: float = Field(1.0, gt=0, allow_inf_nan=False)
    """Its part of a weighted reward."""
    timeout_s: float = Field(30.0, gt=0, le=3_600)
    """Seconds for each command. The agent's code hanging is a failed check."""

    def problems(self, files: Collection[str]) -> Sequence[str]:  # noqa: ARG002
        """What cannot work, given the paths of the task's test files."""
        return ()

    async def run(self, bench: CheckContext) -> CheckOutcome:
        """Raises SandboxError when a sandbox failed, TaskError when the task or its image is at fault."""
        raise NotImplementedError


def read_checks(raw: Sequence[Any], files: Collection[str], where: str) -> tuple[Check, ...]:
    """The checks that a task's `tests` describe. Raises TaskError with the file, the key and what to do."""
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
