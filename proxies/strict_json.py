"""Parses JSON text to values that every later step can write again: no NaN, no infinity, no lone surrogates,
no deep nesting.

`json.loads` accepts all four, and each then breaks something far away: a tokenizer, a hash, a client's
parser, the stack.
"""

import json
import math
import re
from collections.abc import Callable, Iterator
from typing import Any

MAX_DEPTH = 100
"""Objects and arrays nested deeper are refused."""

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def loads(text: str) -> Any:
    """The value of JSON text. Raises `ValueError`."""
    value = _decode(text)
    if _SURROGATE.search(text):
        json.dumps(value, ensure_ascii=False).encode()
    return value


def loads_lenient(text: str) -> Any:
    """The same, but half a surrogate pair becomes U+FFFD: JavaScript cuts strings inside an emoji. Raises
    `ValueError`.
    """
    value = _decode(text)
    return _well_formed(value) if _SURROGATE.search(text) else value


def scan(text: str, at: int, depth: int) -> tuple[Any, int]:
    """The value at index `at` of a longer JSON text, as `loads_lenient` gives it, and the index of its end.

    `depth` is the number of objects and arrays around it. Raises `ValueError`.
    """
    try:
        value, end = _SCAN(text, at)
    except StopIteration:
        raise ValueError("not a JSON value") from None
    if isinstance(value, dict | list):
        _check_depth(value, MAX_DEPTH - depth)
    return (_well_formed(value) if _SURROGATE.search(text, at, end) else value), end


def spans(text: str) -> dict[str, str]:
    """The members of a JSON object, by key, each value as the exact text that was written.

    Raises `ValueError` when the text is no object or has a key twice.
    """
    text = text.strip(" \t\r\n")
    if not isinstance(loads(text), dict):
        raise ValueError("not a JSON object")  # noqa: TRY004 - about text, not types
    out: dict[str, str] = {}
    for key, value in _members(text):
        if key in out:
            raise ValueError(f"key {key!r} appears twice")
        out[key] = value
    return out


def elements(text: str) -> list[str]:
    """The elements of a JSON array, each as the exact text that was written.

    Raises `ValueError` when the text is no array.
    """
    text = text.strip(" \t\r\n")
    if not isinstance(loads(text), list):
        raise ValueError("not a JSON array")  # noqa: TRY004 - about text, not types
    decoder = json.JSONDecoder()
    out: list[str] = []
    at = _skip(text, 1)
    while text[at] != "]":
        _, end = decoder.raw_decode(text, at)
        out.append(text[at:end])
        at = _skip(text, end)
        if text[at] == ",":
            at = _skip(text, at + 1)
    return out


def _members(text: str) -> Iterator[tuple[str, str]]:
    """(key, value text) of an object that is known to be valid."""
    decoder = json.JSONDecoder()
    at = _skip(text, 1)
    while text[at] != "}":
        key, at = decoder.raw_decode(text, at)
        start = _skip(text, _skip(text, at) + 1)
        _, end = decoder.raw_decode(text, start)
        yield key, text[start:end]
        at = _skip(text, end)
        if text[at] == ",":
            at = _skip(text, at + 1)


def _skip(text: str, at: int) -> int:
    while text[at] in " \t\r\n":
        at += 1
    return at


def _decode(text: str) -> Any:
    try:
        value = json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    _check_depth(value, MAX_DEPTH)
    return value


def _check_depth(value: Any, allowed: int) -> None:
    level = [value]
    for _ in range(allowed):
        level = [item for parent in level for item in _children(parent)]
        if not level:
            return
    raise ValueError("nested too deeply")


def _children(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        return iter(value.values())
    return iter(value) if isinstance(value, list) else iter(())


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"{digits} is out of range")
    return value


_SCAN: Callable[[str, int], tuple[Any, int]] = json.JSONDecoder(
    parse_constant=_refuse, parse_float=_finite
).scan_once  # type: ignore[attr-defined]


def _well_formed(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        return {_well_formed(key): _well_formed(item) for key, item in value.items()}
    return [_well_formed(item) for item in value] if isinstance(value, list) else value
