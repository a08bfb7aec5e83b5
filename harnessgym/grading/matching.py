"""Compares a program's output with the expected output. The input is hostile: no content of it raises."""

import json
import math
from functools import partial
from typing import Any, Literal

Match = Literal["exact", "stripped", "tokens", "float", "json"]
"""exact: byte for byte. stripped: white space at the ends of lines and blank lines around the text do not
count. tokens: word by word. float: the same, numbers within the tolerance. json: equal values, numbers
within the tolerance."""

_DEPTH = 64
"""Deepest JSON that is compared; anything deeper does not match."""


def matches(actual: bytes, expected: str, how: Match, tolerance: float) -> bool:
    """Whether `actual` is `expected`. `tolerance` bounds |actual - expected| / max(1, |expected|)."""
    if how == "exact":
        return actual == expected.encode()
    try:
        text = actual.decode()
    except UnicodeDecodeError:
        return False
    if how == "stripped":
        return _stripped(text) == _stripped(expected)
    if how == "tokens":
        return text.split() == expected.split()
    if how == "float":
        words = text.split()
        wanted = expected.split()
        return len(words) == len(wanted) and all(
            _same_word(*pair, tolerance) for pair in zip(words, wanted, strict=True)
        )
    value = parse_json(text)
    return value is not None and same(value[0], json.loads(expected), tolerance)


def parse_json(text: str | bytes) -> tuple[Any] | None:
    """The one value in `text`, in a tuple because it may be None; None when `text` is no JSON, or holds
    NaN or infinity.
    """
    try:
        return (json.loads(text, parse_constant=_refuse),)
    except (ValueError, RecursionError):  # ValueError: also for invalid UTF-8 and integers of too many digits
        return None


def same(
    actual: Any, expected: Any, tolerance: float = 0.0, *, exact_integers: bool = False, depth: int = 0
) -> bool:
    """Whether two JSON values are equal. A boolean is not a number; 1 and 1.0 are equal.

    With `exact_integers`, the tolerance does not apply where both numbers are integers.
    """
    if depth > _DEPTH:
        return False
    inner = partial(same, tolerance=tolerance, exact_integers=exact_integers, depth=depth + 1)
    if isinstance(actual, dict) and isinstance(expected, dict):
        return actual.keys() == expected.keys() and all(inner(actual[key], expected[key]) for key in expected)
    if isinstance(actual, list) and isinstance(expected, list):
        return len(actual) == len(expected) and all(map(inner, actual, expected))
    if is_number(actual) and is_number(expected):
        if exact_integers and isinstance(actual, int) and isinstance(expected, int):
            return actual == expected
        return _close(actual, expected, tolerance)
    return type(actual) is type(expected) and bool(actual == expected)


def is_number(value: object) -> bool:
    """An int or a float, and no bool."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _close(actual: float, expected: float, tolerance: float) -> bool:
    if actual == expected:
        return True
    try:
        return math.isfinite(actual) and abs(actual - expected) <= tolerance * max(1.0, abs(expected))
    except OverflowError:  # an integer beyond every float
        return False


def _same_word(actual: str, expected: str, tolerance: float) -> bool:
    if actual == expected:
        return True
    try:
        return _close(float(actual), float(expected), tolerance)
    except ValueError:
        return False


def _stripped(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.splitlines()).strip("\n")


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")
