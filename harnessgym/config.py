"""Configuration: TOML files plus `--dotted.key value`, checked by pydantic models that forbid what they do not know.

```python
config = load_config(RunConfig, Path("run.toml"), ["--trainer.steps", "40"])
```
"""

import difflib
import json
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from harnessgym.errors import ConfigError


class Config(BaseModel):
    """Base of every settings class: immutable, documented by the strings under its fields, refusing unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


M = TypeVar("M", bound=BaseModel)


def load_config(model: type[M], path: Path | None, overrides: Sequence[str] = ()) -> M:
    """Read a TOML (or, by its suffix, JSON) file, apply `--dotted.key value` overrides, and validate.

    Raises `ConfigError` naming the file, the key and, for an unknown key, the nearest known one.
    """
    raw: dict[str, Any] = {}
    if path is not None:
        try:
            raw = json.loads(path.read_text()) if path.suffix == ".json" else tomllib.loads(path.read_text())
        except FileNotFoundError:
            raise ConfigError(f"There is no config file {path}.") from None
        except ValueError as error:
            raise ConfigError(f"{path} cannot be read: {error}.") from None
    for dotted, text in _pairs(overrides):
        _set(raw, dotted.split("."), parse_value(text), dotted)
    return validate(model, raw, str(path) if path else "the command line")


def validate(model: type[M], raw: dict[str, Any], where: str) -> M:
    """A validated model, or a `ConfigError` that lists every problem on a line of its own."""
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        lines = [_explain(model, problem) for problem in error.errors()]
        raise ConfigError(f"{where} has {len(lines)} wrong setting{'s' * (len(lines) > 1)}:\n  " + "\n  ".join(lines)) from None


def nearest(name: str, known: Sequence[str]) -> str:
    """' Did you mean ...?' for a misspelt name, or the known names."""
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"Did you mean {close[0]!r}?" if close else f"Known: {', '.join(sorted(known))}."


def parse_value(text: str) -> Any:
    """An override's value: a TOML value where it is one, else the text itself."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _pairs(overrides: Sequence[str]) -> list[tuple[str, str]]:
    pairs, rest = [], list(overrides)
    while rest:
        head = rest.pop(0)
        if not head.startswith("--"):
            raise ConfigError(f"Cannot read the option {head!r}: overrides are written `--section.key value`.")
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


def _explain(model: type[BaseModel], problem: Any) -> str:
    location = problem["loc"]
    dotted = ".".join(str(part) for part in location)
    if problem["type"] == "extra_forbidden":
        return f"{dotted}: there is no such setting. {nearest(str(location[-1]), _fields_at(model, location[:-1]))}"
    if problem["type"] == "missing":
        return f"{dotted}: this setting is required."
    return f"{dotted}: {problem['msg']} (got {problem['input']!r})."


def _fields_at(model: type[BaseModel], location: Sequence[Any]) -> list[str]:
    for part in location:
        field = model.model_fields.get(str(part))
        if field is None:
            continue
        inner = [item for item in (field.annotation, *get_args(field.annotation)) if isinstance(item, type)]
        model = next((item for item in inner if issubclass(item, BaseModel)), model)
    return list(model.model_fields)
