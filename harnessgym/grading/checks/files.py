"""Looks at exported files on this machine. Nothing is run."""

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from harnessgym.config import Config
from harnessgym.grading.check import Bench, Check, Outcome
from harnessgym.grading.matching import Match, matches, parse_json, same

_MAX_BYTES = 1 << 20
_MISSING = object()


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

    async def run(self, bench: Bench) -> Outcome:
        """Every rule must hold."""
        problems = [f"{rule.path}: {problem}" for rule in self.rules if (problem := _broken(rule, bench.workspace))]
        counted = f"{len(self.rules) - len(problems)} of {len(self.rules)} rules"
        return Outcome(not problems, "\n".join([counted, *problems[:3]]))


def _broken(rule: FileRule, workspace: Path) -> str:
    """How a rule is broken, or an empty string."""
    path = workspace / rule.path
    if rule.absent:
        return "it is there" if os.path.lexists(path) else ""
    if rule.folder:
        return "" if path.is_dir() else "there is no such folder"
    if not path.is_file() or not path.resolve().is_relative_to(workspace.resolve()):
        return "there is no such file"
    if rule.executable is not None and bool(path.stat().st_mode & 0o100) != rule.executable:
        return "it must be executable" if rule.executable else "it must not be executable"
    with path.open("rb") as file:
        data = file.read(_MAX_BYTES + 1)
    if len(data) > _MAX_BYTES:
        return f"it is larger than {_MAX_BYTES} bytes"
    return _wrong_content(rule, data)


def _wrong_content(rule: FileRule, data: bytes) -> str:
    if rule.content is not None and not matches(data, rule.content, rule.match, rule.tolerance):
        return f"it holds something else: {data[:200].decode(errors='replace')!r}"
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return "it is not UTF-8 text" if rule.pattern or rule.forbidden or rule.parsed else ""
    if rule.pattern and not re.search(rule.pattern, text, re.MULTILINE):
        return f"{rule.pattern!r} is not found in it"
    if rule.forbidden and re.search(rule.forbidden, text, re.MULTILINE):
        return f"{rule.forbidden!r} is found in it"
    return _wrong_values(rule, text) if rule.parsed else ""


def _wrong_values(rule: FileRule, text: str) -> str:
    parsed = parse_json(text) if rule.parsed == "json" else _parse_toml(text)
    if parsed is None:
        return f"it is no {rule.parsed.upper()}"
    for dotted, expected in rule.values.items():
        found = _at(parsed[0], dotted)
        if found is _MISSING or not same(found, expected, rule.tolerance):
            return f"{dotted} is {'missing' if found is _MISSING else repr(found)[:200]}"
    return ""


def _parse_toml(text: str) -> tuple[Any] | None:
    try:
        return (tomllib.loads(text),)
    except (ValueError, RecursionError):
        return None


def _at(value: Any, dotted: str) -> Any:
    for part in dotted.split("."):
        if isinstance(value, list) and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        elif isinstance(value, dict) and part in value:
            value = value[part]
        else:
            return _MISSING
    return value
