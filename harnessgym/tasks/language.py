"""Programming languages as short files for the I/O judge: how one is installed, compiled and run.

```toml
language = "lua"
extension = "lua"
install = "apt-get update -qq && apt-get install -y -qq --no-install-recommends lua5.4"
run = "lua5.4 {file}"
timeout_s = 10
```

In `compile` and `run`, `{file}` is the source file and `{program}` the compiled program. The languages in
`languages/` are shipped. A file with some of the keys of a shipped language overrides those keys.
"""

import json
import shlex
import shutil
import sys
import tomllib
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field, field_validator, model_validator

from harnessgym.config import Config, nearest, validate
from harnessgym.errors import ConfigError, TaskError

SUFFIXES = (".toml", ".yaml", ".yml", ".json")
"""Suffixes of files that hold tables."""
_MACHINE = f"{sys.prefix}/bin:/usr/local/bin:/usr/bin:/bin"
"""The `PATH` in sandboxes that show this machine's programs."""
_THERE = (
    'for each in "$@"; do command -v "$each" >/dev/null || { echo "$each is not there" >&2; exit 1; }; done'
)
_PLACES = ("{file}", "{program}")


class ProgrammingLanguage(Config):
    """One language."""

    language: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9+#_-]*$")
    """Name of the language; the last part of its tasks' ids."""
    extension: str = Field(pattern=r"^[A-Za-z0-9_]+$")
    file: str = Field("", pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]*$|^$")
    """File that the agent writes. If empty, `solution.EXTENSION`."""
    install: tuple[tuple[str, ...], ...] = ()
    """Commands that install the language into an image, as root with network. A string is for the shell."""
    compile: tuple[str, ...] = ()
    """Command that compiles the source, or empty. A string is split into words as in a shell."""
    run: tuple[str, ...] = Field(min_length=1)
    """Command that runs each case."""
    probe: tuple[str, ...] = ()
    """Command that succeeds if the language can be used. If empty, the programs of `compile` and `run` must
    exist."""
    timeout_s: float = Field(10.0, gt=0, le=3_600)
    """Seconds for each case."""
    compile_timeout_s: float = Field(60.0, gt=0, le=3_600)
    prompt: str = ""
    """A sentence for the agent, such as the version."""

    @model_validator(mode="before")
    @classmethod
    def _short(cls, raw: Any) -> Any:
        """Accepts short forms: `timeout` (the paper's name for `timeout_s`), and a string for a command."""
        raw = dict(raw)
        if "timeout" in raw:
            raw.setdefault("timeout_s", raw.pop("timeout"))
        if isinstance(raw.get("install"), str):
            raw["install"] = [raw["install"]]
        if isinstance(raw.get("extension"), str):
            raw["extension"] = raw["extension"].removeprefix(".")
        return raw

    @field_validator("install", mode="before")
    @classmethod
    def _steps(cls, value: Any) -> Any:
        return (
            [["sh", "-c", line] if isinstance(line, str) else line for line in value]
            if isinstance(value, list)
            else value
        )

    @field_validator("compile", "run", "probe", mode="before")
    @classmethod
    def _words(cls, value: Any) -> Any:
        return shlex.split(value) if isinstance(value, str) else value

    @property
    def source(self) -> str:
        """The file that the agent writes."""
        return self.file or f"solution.{self.extension}"

    @property
    def programs(self) -> tuple[str, ...]:
        """The programs that `compile` and `run` start, if they are named literally."""
        first = (words[0] for words in (self.compile, self.run) if words)
        return tuple(
            dict.fromkeys(
                word for word in first if "/" not in word and not any(place in word for place in _PLACES)
            )
        )

    @property
    def probing(self) -> tuple[str, ...]:
        """A command that succeeds in a sandbox where the language can be used."""
        return self.probe or ("sh", "-c", _THERE, "sh", *self.programs)

    def command(self, words: Sequence[str]) -> tuple[str, ...]:
        """`compile` or `run` with its placeholders filled in."""
        names = {"{file}": self.source, "{program}": "./program"}
        return tuple(_filled(word, names) for word in words)

    def missing(self) -> str:
        """The programs that this machine lacks, and how to install them; empty if none."""
        absent = [name for name in self.programs if shutil.which(name, path=_MACHINE) is None]
        return (
            f"{self.language} needs {', '.join(absent)}, which this machine does not have. {self.remedy}"
            if absent
            else ""
        )

    @property
    def remedy(self) -> str:
        """How to install the language."""
        how = "; ".join(step[-1] if step[:2] == ("sh", "-c") else shlex.join(step) for step in self.install)
        return f"As root: {how}" if how else "Its file does not say how to install it (`install`)."


def _filled(word: str, names: dict[str, str]) -> str:
    for place, name in names.items():
        word = word.replace(place, name)
    return word


def shipped_languages() -> list[str]:
    """Names of the languages that need no file, sorted."""
    return sorted(
        entry.name.removesuffix(".toml") for entry in _folder().iterdir() if entry.name.endswith(".toml")
    )


def shipped(name: str) -> ProgrammingLanguage:
    """The shipped language with this name. Raises TaskError with the known ones."""
    if name not in shipped_languages():
        raise TaskError(
            f"No language {name!r} is shipped. {nearest(name, shipped_languages())} Or write "
            f"languages/{name}.toml."
        )
    language: ProgrammingLanguage = checked(
        ProgrammingLanguage, _shipped_table(name), f"the shipped {name}.toml"
    )
    return language


def read_language(path: Path) -> tuple[ProgrammingLanguage, tuple[str, ...]]:
    """Reads the language of one file, and a note for each unknown key.

    Raises TaskError with the file, the key, and what to do.
    """
    raw = read_table(path)
    raw.setdefault("language", path.stem)
    if path.stem == "language" and raw["language"] == "language":
        raise TaskError(f"{path}: language: which language is it? Write `language = ...`.")
    known = {*ProgrammingLanguage.model_fields, "timeout"}
    notes = [
        f"{path}: a language has no key {key!r}, so it has no effect. {nearest(key, sorted(known))}"
        for key in raw.keys() - known
    ]
    own = {key: value for key, value in raw.items() if key in known}
    if own["language"] in shipped_languages():
        own = {**_shipped_table(own["language"]), **own}
    return checked(ProgrammingLanguage, own, str(path)), tuple(sorted(notes))


def read_table(path: Path) -> dict[str, Any]:
    """Reads the table in a TOML, YAML or JSON file. Raises TaskError if it is none."""
    table = read_value(path)
    if not isinstance(table, dict) or not all(isinstance(key, str) for key in table):
        raise TaskError(f"{path} must hold a table of keys and values.")
    return table


def read_value(path: Path) -> Any:
    """Reads the value in a TOML, YAML or JSON file. Raises TaskError if that fails."""
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".toml":
            return tomllib.loads(text)
        return json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise TaskError(f"{path} cannot be read: {error}.") from error


def checked(model: type[Any], raw: dict[str, Any], where: str) -> Any:
    """Validates a model. Raises TaskError with the file and the keys."""
    try:
        return validate(model, raw, where)
    except ConfigError as error:
        raise TaskError(str(error)) from error


def _folder() -> Any:
    return files("harnessgym.tasks") / "languages"


def _shipped_table(name: str) -> dict[str, Any]:
    return tomllib.loads((_folder() / f"{name}.toml").read_text(encoding="utf-8"))
