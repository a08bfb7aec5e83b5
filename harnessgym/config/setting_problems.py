"""Explains refused settings: pydantic's errors, each with its key, its value and what to do."""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from harnessgym.config.setting_tree import known_at, suggestion, without_tags

_LONGEST = 80
"""Most characters of a value that are shown."""
_PLAIN_TYPES = frozenset({"string_type", "int_type", "float_type", "bool_type"})
_TABLE_TYPES = frozenset({"model_type", "model_attributes_type", "dict_type", "is_instance_of"})
"""Pydantic's names of errors about a value that is not of such a type."""


@dataclass(frozen=True, slots=True)
class SettingProblem:
    """One problem with a setting."""

    key: str
    """Dotted key; empty for a problem with several settings, which `reason` names."""
    reason: str
    section: bool = False
    """Whether the key names a section, because settings in it contradict each other."""

    @property
    def text(self) -> str:
        """The problem in the words of a settings file."""
        return f"{self.key}: {self.reason}" if self.key else self.reason

    @property
    def as_option(self) -> str:
        """The problem in the words of the command line."""
        return f"--{self.text}" if self.key and not self.section else self.text


def problems_of(model: type[BaseModel], error: ValidationError) -> list[SettingProblem]:
    """The problems of a validation error, without those that only follow from others."""
    raw = error.errors()
    kept = [each for each in raw if not _follows(each, raw) and not _of_another_kind(model, each, raw)]
    return list(dict.fromkeys(_problem(model, each) for each in kept))


def _problem(model: type[BaseModel], error: Any) -> SettingProblem:
    location = without_tags(model, error["loc"])
    key = ".".join(map(str, location))
    if error["type"] == "extra_forbidden":
        leaf = ".".join((key, *_inner(error["input"])))
        return SettingProblem(
            leaf, f"there is no such setting. {suggestion(model, location, error['input'])}"
        )
    if error["type"] == "missing":
        return SettingProblem(key, "this setting is required.")
    if error["type"] in ("model_type", "model_attributes_type"):
        return SettingProblem(
            key, f"this is a section, not a value{_got(error['input'])}. Known: {known_at(model, location)}."
        )
    section = isinstance(error["input"], dict)
    reason = str(error["ctx"]["error"] if error["type"] == "value_error" else error["msg"]).rstrip(".")
    return SettingProblem(key, f"{reason}{_got(error['input'])}.{_nearest_literal(error)}", section)


def _follows(error: Any, errors: Sequence[Any]) -> bool:
    """Whether a list is too short only because items in it are wrong, which is listed separately."""
    own = error["loc"]
    return error["type"] == "too_short" and any(
        len(each["loc"]) > len(own) and each["loc"][: len(own)] == own for each in errors
    )


def _of_another_kind(model: type[BaseModel], error: Any, errors: Sequence[Any]) -> bool:
    """Whether an error is about a type that was not intended, for a setting that takes several types.

    Pydantic reports errors for every type. If the value is a table, only errors inside it count, else only
    those of plain types.
    """
    clean = without_tags(model, error["loc"])
    if len(clean) == len(error["loc"]):
        return False
    rivals = [each["loc"] for each in errors if without_tags(model, each["loc"])[: len(clean)] == clean]
    if any(len(without_tags(model, each)) > len(clean) for each in rivals):
        return True
    if isinstance(error["input"], dict):
        return len(rivals) > 1 and error["type"] in _PLAIN_TYPES
    return len(rivals) > 1 and error["type"] in _TABLE_TYPES


def _inner(value: Any) -> list[str]:
    """The path of keys to the first value in a table."""
    keys = []
    while isinstance(value, dict) and value:
        name, value = next(iter(value.items()))
        keys.append(str(name))
    return keys


def _got(value: Any) -> str:
    """A value as text. Tables and lists are not shown, because they are long and may hold secrets."""
    if value == "" or not isinstance(value, str | int | float | bool):
        return ""
    shown = repr(value)
    return f" (got {shown if len(shown) <= _LONGEST else shown[: _LONGEST - 1] + '…'})"


def _nearest_literal(error: Any) -> str:
    """Suggests the most similar of the possible values."""
    if error["type"] != "literal_error":
        return ""
    known = [name.strip(" '") for name in error["ctx"]["expected"].replace(" or ", ", ").split(",")]
    close = difflib.get_close_matches(str(error["input"]), known, n=1, cutoff=0.6)
    return f" Did you mean {close[0]!r}?" if close else ""
