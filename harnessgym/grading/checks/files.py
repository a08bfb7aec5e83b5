"""Looks at exported files on this machine. Nothing is run."""

import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from harnessgym.config import Config
from harnessgym.grading.check import Check, CheckContext, CheckOutcome
from harnessgym.grading.file_rules import broken
from harnessgym.grading.matching import Match, parse_json


class FileRule(Config):
    """What must be true of one path; every condition that is given must hold."""

    path: str = Field(min_length=1)
    absent: bool = False
    """Nothing may be there."""
    folder: bool = False
    """A folder must be there."""
    content: str | None = None
    """The whole text."""
    match: Match = "stripped"
    """How `content` is compared."""
    tolerance: float = Field(1e-6, ge=0)
    pattern: str = ""
    """A regular expression that must be found in it; `^` and `$` are of lines."""
    forbidden: str = ""
    """A regular expression that must not."""
    parsed: Literal["", "json", "toml"] = ""
    """What it must be, as a whole."""
    values: Mapping[str, Any] = Field(default_factory=dict)
    """Of a parsed file: dotted path (list positions are numbers) to value."""
    executable: bool | None = None
    """Whether its owner may execute it."""

    @field_validator("path")
    @classmethod
    def _inside(cls, path: str) -> str:
        if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
            raise ValueError("give a relative path inside the workspace")
        return path

    @field_validator("pattern", "forbidden")
    @classmethod
    def _compiles(cls, pattern: str) -> str:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"it is no regular expression: {error}") from error
        return pattern

    @model_validator(mode="after")
    def _sensible(self) -> Self:
        if self.values and not self.parsed:
            raise ValueError('`values` need to know how to read the file: give `parsed = "json"` or `"toml"`')
        if self.absent and len(self.model_fields_set) > 2:
            raise ValueError("what must be absent can have no other condition")
        if self.match == "json" and self.content is not None and parse_json(self.content) is None:
            raise ValueError("`content` is no JSON, and `match` is json")
        return self


class Files(Check):
    """Rules over the exported workspace."""

    kind: Literal["files"]
    rules: tuple[FileRule, ...] = Field(min_length=1)

    async def run(self, bench: CheckContext) -> CheckOutcome:
        """Every rule must hold."""
        problems = [
            f"{rule.path}: {problem}" for rule in self.rules if (problem := broken(rule, bench.workspace))
        ]
        counted = f"{len(self.rules) - len(problems)} of {len(self.rules)} rules"
        return CheckOutcome(not problems, "\n".join([counted, *problems[:3]]))
