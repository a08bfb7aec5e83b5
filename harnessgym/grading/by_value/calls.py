"""Fresh calls of the functions that a solution changes, as a test file that observes them.

The recorder (`runners/tracing.py`) notes the arguments with which the task's tests call functions on the gold
solution. New calls have arguments of the same types. They are written as Python, so that one program observes
calls and variants of tests alike.
"""

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harnessgym.grading.differential.functions import Function
from harnessgym.grading.differential.inputs import FunctionCall, mutated
from harnessgym.grading.runners.encoding import decode

_PLANNED = 8
"""Most calls of one function in a plan."""
_LONGEST = 600
"""Longest call in a plan, in characters of its JSON."""
_FRESH = 48
"""Calls at a judgement, of all functions together."""
_AT_ONCE = 8
"""Calls that share a process."""
_IMPORTS = """\
import asyncio, datetime, importlib, inspect
from decimal import Decimal
from fractions import Fraction
from math import inf, nan
from pathlib import PosixPath, PurePosixPath


def call(module, owners, name, new, args, kwargs):
    holder = importlib.import_module(module)
    for owner in owners:
        holder = getattr(holder, owner)
    if new is not None:
        holder = holder(*new[0], **new[1])
    result = getattr(holder, name)(*args, **kwargs)
    return asyncio.run(result) if inspect.iscoroutine(result) else result
"""


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """A recorded call of a function."""

    module: str
    function: str
    """Name with its classes: `Stack.push`."""
    args: Any
    kwargs: Any
    """Encoded arguments; see `harnessgym.grading.runners.encoding`."""
    new: Any = None
    """For a method: the arguments that its object was made with."""


def planned(
    functions: Iterable[Function], recorded: Mapping[tuple[str, str], Sequence[FunctionCall]]
) -> tuple[PlannedCall, ...]:
    """The calls of these functions that a plan keeps."""
    kept = []
    for function in functions:
        short = [
            call for call in recorded.get((function.file, function.name), ()) if len(call.key) <= _LONGEST
        ]
        kept += [
            PlannedCall(function.module, function.name, call.args, call.kwargs, call.new)
            for call in short[:_PLANNED]
        ]
    return tuple(kept)


def fresh_calls(calls: Sequence[PlannedCall], draw: random.Random, times: int = 1) -> str:
    """A test file that makes new calls of the same functions. Empty if there are none.

    `times` as many as usual.
    """
    seeds: dict[tuple[str, str], list[FunctionCall]] = {}
    for call in calls:
        seeds.setdefault((call.module, call.function), []).append(
            FunctionCall(call.args, call.kwargs, call.new)
        )
    made = []
    for (module, function), of_function in seeds.items():
        new_calls = mutated(of_function, draw, -(-_FRESH * times // len(seeds)))
        made += [_statement(module, function, call) for call in new_calls]
    lines = [_IMPORTS] if made else []
    for start in range(0, len(made), _AT_ONCE):
        lines += [f"\n\ndef test_{start}():", *made[start : start + _AT_ONCE]]
    return "\n".join(lines)


def _statement(module: str, function: str, call: FunctionCall) -> str:
    *owners, name = function.split(".")
    new = None if call.new is None else (decode(call.new["args"]), decode(call.new["kwargs"]))
    arguments = f"{decode(call.args)!r}, {decode(call.kwargs)!r}"
    return (
        "    with __observing__:\n"
        f"        __observe__(call({module!r}, {owners!r}, {name!r}, {new!r}, {arguments}))"
    )
