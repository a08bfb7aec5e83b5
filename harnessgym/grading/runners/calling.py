"""Imports a module of the workspace and calls its functions, once per case; writes the answers as JSON lines.

Runs in a grading sandbox as `python3 -I -c <this text>`, with the job on stdin: `{"module", "cases":
[{"function", "args", "kwargs"}]}`. Standard output is reserved for the answers: what the code under test
prints goes to standard error. That code can change only its own answers in this process; the expected ones
are not in the sandbox.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from typing import Any


def main() -> None:
    """Reads the job from stdin, makes the calls and writes their answers to stdout."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8", newline="\n")
    os.dup2(2, 1)
    job = json.loads(sys.stdin.buffer.read())
    dumps = json.dumps

    def say(**answer: Any) -> None:
        out.write(dumps(answer, allow_nan=False) + "\n")
        out.flush()

    say(began=True)
    sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(job["module"])
    except Exception as error:  # noqa: BLE001  # any failure to import is the answer
        say(broken=f"{type(error).__name__}: {str(error)[:500]}")
        return
    for number, case in enumerate(job["cases"]):
        answer = _answer(getattr(module, case["function"], None), case)
        try:
            say(case=number, **answer)
        except Exception as error:  # noqa: BLE001
            say(case=number, raised=[], message=f"the result is no JSON: {str(error)[:500]}")


def _answer(function: Any, case: dict[str, Any]) -> dict[str, Any]:
    if function is None:
        return {"raised": [], "message": "there is no such function"}
    try:
        return {"result": function(*case["args"], **case["kwargs"])}
    except Exception as error:  # noqa: BLE001  # what it raises is its answer
        return {"raised": [kind.__name__ for kind in type(error).__mro__], "message": str(error)[:500]}


if __name__ == "__main__":
    main()
