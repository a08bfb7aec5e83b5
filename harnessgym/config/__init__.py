"""Configuration: TOML files plus `--dotted.key value`, checked by pydantic models that forbid unknown keys.

```python
config = load_config(RunConfig, Path("run.toml"), ["--trainer.steps", "40"])
```
"""

import copy
import difflib
import json
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from harnessgym.config.setting_problems import SettingProblem, problems_of
from harnessgym.errors import ConfigError


class Config(BaseModel):
    """Base of all settings classes: immutable, no unknown keys, documented by the strings under fields."""

    model_config = ConfigDict(extra="forbid", frozen=True)


M = TypeVar("M", bound=BaseModel)


def load_config(model: type[M], path: Path | None, overrides: Sequence[str] = ()) -> M:
    """Read a TOML (or, by its suffix, JSON) file, apply `--dotted.key value` overrides, and validate.

    Raises `ConfigError` naming the file or the command line, the key and, for an unknown key, a likely
    correction.
    """
    raw: dict[str, Any] = {}
    if path is not None:
        try:
            raw = json.loads(path.read_text()) if path.suffix == ".json" else tomllib.loads(path.read_text())
        except FileNotFoundError:
            raise ConfigError(f"There is no config file {path}.") from None
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror}. Give a TOML or JSON file.") from None
        except ValueError as error:
            raise ConfigError(f"{path} cannot be read: {error}.") from None
    # `_set` changes `raw` in place.
    in_file = copy.deepcopy(raw)
    for dotted, text in _pairs(overrides):
        _set(raw, dotted.split("."), parse_value(text), dotted)
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        wrong = problems_of(model, error)
    # Validate the file alone: a problem that it does not have comes from the command line.
    of_file = _problems(model, in_file) if path is not None else []
    command_line_problems = [problem for problem in wrong if problem not in of_file]
    parts = [_listed(str(path), [problem.text for problem in wrong if problem in of_file])]
    parts += [_listed("The command line", [problem.as_option for problem in command_line_problems])]
    raise ConfigError("\n".join(part for part in parts if part))


def validate(model: type[M], raw: dict[str, Any], where: str) -> M:
    """Validate settings. Raises `ConfigError` with one line per problem."""
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        raise ConfigError(_listed(where, [problem.text for problem in problems_of(model, error)])) from None


def _problems(model: type[BaseModel], raw: dict[str, Any]) -> list[SettingProblem]:
    try:
        model.model_validate(raw)
    except ValidationError as error:
        return problems_of(model, error)
    return []


def _listed(where: str, lines: Sequence[str]) -> str:
    if not lines:
        return ""
    return f"{where} has {len(lines)} wrong setting{'s' * (len(lines) > 1)}:\n  " + "\n  ".join(lines)


def nearest(name: str, known: Sequence[str]) -> str:
    """`Did you mean ...?` for a misspelt name, else the known names."""
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"Did you mean {close[0]!r}?" if close else f"Known: {', '.join(sorted(known))}."


def parse_value(text: str) -> Any:
    """The value of an override: parsed as TOML if possible, else the text itself."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _pairs(overrides: Sequence[str]) -> list[tuple[str, str]]:
    pairs = []
    rest = list(overrides)
    while rest:
        head = rest.pop(0)
        if not head.startswith("--"):
            raise ConfigError(
                f"Cannot read the option {head!r}: overrides are written `--section.key value`."
            )
        key, equals, value = head[2:].partition("=")
        if not equals:
            if not rest:
                raise ConfigError(f"The option --{key} has no value: write `--{key} value`.")
            value = rest.pop(0)
        pairs.append((key, value))
    return pairs


def _set(raw: dict[str, Any], path: list[str], value: Any, dotted: str) -> None:
    for part in path[:-1]:
        raw = raw.setdefault(part, {})
        if not isinstance(raw, dict):
            raise ConfigError(f"--{dotted}: {part!r} is a value, not a section.")
    raw[path[-1]] = value
