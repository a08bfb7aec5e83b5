"""Checks exported files on this machine. Runs nothing."""

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
    """Conditions on one path. All that are set must hold."""

    path: str = Field(min_length=1)
    absent: bool = False
    """The path must not exist."""
    folder: bool = False
    """The path must be a folder."""
    content: str | None = None
    """The whole text to expect."""
    match: Match = "stripped"
    """How `content` is compared."""
    tolerance: float = Field(1e-6, ge=0)
    pattern: str = ""
    """A regular expression that must match somewhere. `^` and `$` match at lines."""
    forbidden: str = ""
    """A regular expression that must match nowhere."""
    parsed: Literal["", "json", "toml"] = ""
    """The format that the whole file must have."""
    values: Mapping[str, Any] = Field(default_factory=dict)
    """Values of a parsed file: dotted path (list positions are numbers) to value."""
    executable: bool | None = None
    """Whether the owner may execute the file."""

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

    async def run(self, context: CheckContext) -> CheckOutcome:
        """Passes if every rule holds."""
        problems = [
            f"{rule.path}: {problem}" for rule in self.rules if (problem := broken(rule, context.workspace))
        ]
        counted = f"{len(self.rules) - len(problems)} of {len(self.rules)} rules"
        return CheckOutcome(not problems, "\n".join([counted, *problems[:3]]))
