"""Splits a test made of asserts into the calls that it makes and the asserts on their results.

Runs in a grading sandbox as `python3 -I -c <this text>`, with the job on stdin, and answers in JSON lines.
There are two roles:

ask     `{"role", "reference", "test", "entry", "function", "calls", "answers"}`: runs the reference and the
        test in one namespace, then `entry(candidate)`. Without answers, the candidate calls the reference's
        own function and the calls are reported. With answers, it returns them in order, for equal calls.
        No code of the workspace runs in this role.
answer  `{"role", "module", "function", "calls"}`: imports the module from the workspace and makes the calls.
        The sandbox has neither test nor reference.

Only plain data passes between the two, so an object that equals everything cannot.
"""

from __future__ import annotations

import builtins
import importlib
import json
import os
import random
import sys
from typing import Any

_SEED = 0
"""Seed of `random`: a test that draws its cases must draw the same ones in both of its runs."""


def main() -> None:
    """Reads the job, and does it."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8", newline="\n")
    os.dup2(2, 1)
    job = json.loads(sys.stdin.buffer.read())
    dumps = json.dumps

    def say(**answer: Any) -> None:
        out.write(dumps(answer, allow_nan=False) + "\n")
        out.flush()

    say(began=True)
    if job["role"] == "ask":
        say(**_ask(job))
    else:
        _answer(job, say)


class CandidateModule:
    """The candidate that the test calls.

    Records the calls; returns the reference's results or given answers.
    """

    def __init__(self, function: Any, calls: list[Any], answers: list[Any] | None) -> None:
        self._function = function
        self._expected = calls
        self._answers = answers
        self.calls: list[Any] = []
        self.strayed = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The result of the next call."""
        number = len(self.calls)
        call = [encoded(args), encoded(kwargs)]
        self.calls.append(call)
        if self._answers is None:
            return self._function(*args, **kwargs)
        if number >= len(self._expected) or self._expected[number] != call:
            self.strayed = True
            raise AssertionError(f"call {number} is one that the test does not make of a right solution")
        return _answer_value(self._answers[number], number)


def _ask(job: dict[str, Any]) -> dict[str, Any]:
    space: dict[str, Any] = {"__name__": "reference"}
    try:
        exec(compile(job["reference"], "reference", "exec"), space)  # noqa: S102  # the task's own text
        candidate = CandidateModule(space[job["function"]], job["calls"], job["answers"])
        exec(compile(job["test"], "test", "exec"), space)  # noqa: S102
        entry = space[job["entry"]]
    except Exception as error:  # noqa: BLE001  # a broken task: reported to the node
        return {"broken": _error_text(error)}
    random.seed(_SEED)
    try:
        entry(candidate)
    except Exception as error:  # noqa: BLE001  # a failed assert, or what a strange answer led to
        return {
            "passed": False,
            "why": f"call {len(candidate.calls) - 1}: {_error_text(error)}",
            "calls": candidate.calls,
        }
    return {"passed": not candidate.strayed, "why": "", "calls": candidate.calls}


def _answer(job: dict[str, Any], say: Any) -> None:
    sys.path.insert(0, os.getcwd())
    try:
        function = getattr(importlib.import_module(job["module"]), job["function"])
    except Exception as error:  # noqa: BLE001  # any failure to import is the answer
        say(missing=_error_text(error))
        return
    for number, (args, kwargs) in enumerate(job["calls"]):
        try:
            say(case=number, result=encoded(function(*decoded(args), **decoded(kwargs))))
        except Exception as error:  # noqa: BLE001
            say(case=number, raised=[kind.__name__ for kind in type(error).__mro__], message=str(error)[:500])


def _answer_value(answer: Any, number: int) -> Any:
    """The value of an answer. Raises the exception that the answer holds, if it holds one."""
    if not isinstance(answer, dict):
        raise AssertionError(f"call {number} was not answered")  # noqa: TRY004
    if "result" in answer:
        return decoded(answer["result"])
    raised = answer.get("raised")
    for name in raised if isinstance(raised, list) else ():
        kind = getattr(builtins, name, None) if isinstance(name, str) else None
        if isinstance(kind, type) and issubclass(kind, Exception):
            raise kind(str(answer.get("message")))
    raise RuntimeError(str(answer.get("message")))


def encoded(value: Any) -> Any:
    """Encodes a value as JSON with its type. An instance of a subclass becomes one of its base class.

    Raises TypeError for anything but plain data.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, str):
        return str(value)
    for kind, written in _WRITTEN.items():
        if isinstance(value, kind):
            return {kind.__name__: written(value)}
    if getattr(value, "shape", None) == ():  # a number of numpy's
        return encoded(value.item())
    raise TypeError(f"a {type(value).__name__} is no plain data")


def decoded(value: Any) -> Any:
    """Decodes a value.

    Raises TypeError, ValueError or KeyError for anything that `encoded` does not produce.
    """
    if isinstance(value, list | float):
        raise TypeError("no encoded value")
    if not isinstance(value, dict):
        return value
    ((name, inner),) = value.items()
    return _READ[name](inner)


def _items(values: Any) -> list[Any]:
    return [encoded(item) for item in values]


_WRITTEN: dict[type, Any] = {
    float: lambda value: repr(float(value)),
    complex: lambda value: repr(complex(value)),
    bytes: bytes.hex,
    dict: lambda value: [_items(pair) for pair in value.items()],
    list: _items,
    tuple: _items,
    set: _items,
    frozenset: _items,
}
_READ: dict[str, Any] = {
    "float": float,
    "complex": complex,
    "bytes": bytes.fromhex,
    "dict": lambda pairs: {decoded(key): decoded(item) for key, item in pairs},
    "list": lambda items: [decoded(item) for item in items],
    "tuple": lambda items: tuple(decoded(item) for item in items),
    "set": lambda items: {decoded(item) for item in items},
    "frozenset": lambda items: frozenset(decoded(item) for item in items),
}


def _error_text(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error)[:500]}"


if __name__ == "__main__":
    main()
