"""The packages for tasks: pinned source distributions, and which of their files are code and tests."""

import functools
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import Field

from harnessgym.config import Config, nearest, validate
from harnessgym.errors import ConfigError
from harnessgym.task import Split

_TABLE = Path(__file__).with_name("packages.toml")
Licence = Literal["MIT", "BSD-3-Clause"]


class SourcePackage(Config):
    """One table of `packages.toml`, which documents its keys."""

    name: str
    version: str
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    licence: Licence
    split: Split
    sources: tuple[str, ...] = (".",)
    code: tuple[str, ...]
    faulty: tuple[str, ...] = ()
    tests: str
    graded: tuple[str, ...] = ()


@functools.cache
def packages() -> Mapping[str, SourcePackage]:
    """All packages by name."""
    tables = tomllib.loads(_TABLE.read_text(encoding="utf-8"))
    return {
        name: validate(SourcePackage, {"name": name, **table}, f"{_TABLE}: {name}")
        for name, table in sorted(tables.items())
    }


def package(name: str) -> SourcePackage:
    """The package with this name. Raises ConfigError with the nearest known name."""
    source_package = packages().get(name)
    if source_package is None:
        raise ConfigError(f"There is no package {name!r} to make tasks of. {nearest(name, list(packages()))}")
    return source_package
