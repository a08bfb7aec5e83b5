"""Encodes Python values as JSON and back, so that two versions of a function get equal arguments and their
results can be compared.

Values that JSON has stay as they are. All others, dicts included, become an object whose one key starts with
`$`. Used on the node, and passed to runners as text.
"""

from __future__ import annotations

import collections.abc
import datetime as dt
import decimal
import fractions
import itertools
import json
import math
import pathlib
import types
from typing import Any

_DEPTH = 24
_ITEMS = 1_000
_TEXT = 400
_SCALARS: dict[type, tuple[str, Any, Any]] = {
    bytes: ("$bytes", bytes.hex, bytes.fromhex),
    bytearray: ("$bytearray", bytearray.hex, bytearray.fromhex),
    complex: ("$complex", lambda value: [value.real, value.imag], lambda pair: complex(*pair)),
    decimal.Decimal: ("$decimal", str, decimal.Decimal),
    fractions.Fraction: ("$fraction", str, fractions.Fraction),
    dt.datetime: ("$datetime", dt.datetime.isoformat, dt.datetime.fromisoformat),
    dt.date: ("$date", dt.date.isoformat, dt.date.fromisoformat),
    dt.timedelta: (
        "$timedelta",
        lambda value: [value.days, value.seconds, value.microseconds],
        lambda parts: dt.timedelta(*parts),
    ),
    pathlib.PosixPath: ("$path", str, pathlib.PosixPath),
    pathlib.PurePosixPath: ("$pure_path", str, pathlib.PurePosixPath),
}
_BACK: dict[str, Any] = {"$float": float, "$integer": lambda text: int(text, 16)}
_BACK |= {tag: back for tag, _, back in _SCALARS.values()}
_COLLECTIONS: dict[type, str] = {tuple: "$tuple", set: "$set", frozenset: "$frozenset"}
_MADE: dict[str, Any] = {"$tuple": tuple, "$set": set, "$frozenset": frozenset}


def encode(value: Any, *, exact: bool = False, depth: int = 0) -> Any:
    """Encodes a value as JSON. With `exact`, raises ValueError for a value that `decode` could not restore.

    Otherwise an instance of a subclass is encoded as one of its base class, an iterator as its items, and any
    other object as the name of its type with its public attributes or its `repr`.
    """
    if value is None or (isinstance(value, bool | str) and type(value) in (bool, str)):
        return value
    if type(value) in (int, float):
        return _number(value)
    if type(value) in _SCALARS:
        tag, there, _ = _SCALARS[type(value)]
        return {tag: there(value)}
    if depth > _DEPTH:
        if exact:
            raise ValueError("too deep")
        return {"$opaque": "too deep"}
    inner = _Inner(exact=exact, depth=depth + 1)
    for kind in (list, dict, *_COLLECTIONS):
        if type(value) is kind or (not exact and isinstance(value, kind)):
            return _collection(value, kind, inner)
    if exact:
        raise ValueError(f"{type(value).__name__} cannot be given again")
    return _other(value, inner)


def decode(value: Any) -> Any:
    """Restores a value from `encode(..., exact=True)`.

    Raises ValueError for anything that it does not produce.
    """
    if isinstance(value, list):
        return [decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    ((tag, inner),) = value.items()
    if tag in _BACK:
        return _BACK[tag](inner)
    if tag == "$dict":
        return {decode(key): decode(item) for key, item in inner}
    if tag not in _MADE:
        raise ValueError(f"{tag} cannot be given again")
    return _MADE[tag](decode(item) for item in inner)


class _Inner:
    """Encodes the values inside a value, one level deeper."""

    def __init__(self, *, exact: bool, depth: int) -> None:
        self._exact = exact
        self._depth = depth

    def __call__(self, value: Any) -> Any:
        return encode(value, exact=self._exact, depth=self._depth)


def _number(value: float) -> Any:
    if type(value) is int:
        return value if value.bit_length() <= 4_096 else {"$integer": hex(value)}
    return value if math.isfinite(value) else {"$float": repr(value)}


def _collection(value: Any, kind: type, inner: _Inner) -> Any:
    if kind is list:
        return [inner(item) for item in value]
    if kind is dict:
        return {"$dict": sorted(([inner(key), inner(item)] for key, item in value.items()), key=_text)}
    items = [inner(item) for item in value]
    return {_COLLECTIONS[kind]: items if kind is tuple else sorted(items, key=_text)}


def _other(value: Any, inner: _Inner) -> Any:
    scalars: tuple[Any, ...] = (int, float, str, bytes)
    for kind in scalars:
        if isinstance(value, kind):
            return inner(kind(value))
    if isinstance(value, collections.abc.Iterator):
        return {"$iterator": [inner(item) for item in itertools.islice(value, _ITEMS)]}
    name = type(value).__qualname__
    if isinstance(value, type | types.FunctionType | types.BuiltinFunctionType | types.ModuleType):
        return {"$opaque": name, "text": str(getattr(value, "__name__", ""))}
    fields = _fields(value)
    if fields:
        return {"$object": name, "fields": {key: inner(item) for key, item in sorted(fields.items())}}
    text = repr(value)
    return {"$opaque": name, "text": "" if " at 0x" in text else text[:_TEXT]}


def _fields(value: Any) -> dict[str, Any]:
    slots = [
        name
        for kind in type(value).__mro__
        for name in getattr(kind, "__slots__", ())
        if isinstance(name, str)
    ]
    attributes = {name: getattr(value, name) for name in slots if hasattr(value, name)} | getattr(
        value, "__dict__", {}
    )
    return {name: item for name, item in attributes.items() if not name.startswith("_")}


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
