"""Calls functions of a workspace, each call in a process of its own, and reports the result of each.

Runs in a fresh sandbox by way of `starting.py`, with the job on stdin: `{"nonce", "pycache_prefix",
"encoding", "roots", "cases": [{"module", "function", "new", "args", "kwargs"}], "case_s", "hangs"}`;
`encoding` is the text of `encoding.py`. Nothing of the workspace is imported before `sys.pycache_prefix` is
set. Answers are written to a private descriptor, one a line: the nonce, then JSON in hexadecimal. What a call
prints is part of its answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import dis
import hashlib
import importlib
import inspect
import io
import json
import os
import select
import signal
import sys
import time
import types
from typing import Any

_MAX = 65_536
"""Longest answer, in bytes; of a longer one only the digest is sent."""


def main() -> None:
    """Reads the job from stdin, makes the calls and writes their answers to the private descriptor."""
    out = os.dup(1)
    os.dup2(2, 1)
    job = json.loads(sys.stdin.buffer.read())
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    encoding: Any = types.ModuleType("encoding")
    exec(job["encoding"], encoding.__dict__)  # noqa: S102  # our own text; there is no file to import
    sys.pycache_prefix = job["pycache_prefix"]
    sys.path[:0] = [os.path.normpath(os.path.join(os.getcwd(), root)) for root in job["roots"]]
    start = job["nonce"].encode()

    def say(**answer: Any) -> None:
        line = b"%s %s\n" % (start, json.dumps(answer).encode().hex().encode())
        while line:
            line = line[os.write(out, line) :]

    say(began=True)
    broken = {}
    for name in sorted({case["module"] for case in job["cases"]}):
        why = _import(name)
        if why:
            broken[name] = why
            say(module=name, broken=why)
    say(imported=True)
    hangs: dict[str, int] = {}
    for number, case in enumerate(job["cases"]):
        place = f"{case['module']}.{case['function']}"
        if case["module"] in broken or hangs.get(place, 0) >= job["hangs"]:
            continue
        answer = _call_in_fork(case, encoding, job["case_s"])
        hangs[place] = hangs.get(place, 0) + ("hang" in answer)
        say(case=number, **answer)
    say(ended=True)


def _import(name: str) -> str:
    try:
        importlib.import_module(name)
    except BaseException as error:  # noqa: BLE001  # any failure to import is the answer
        return f"{type(error).__name__}: {str(error)[:300]}"
    return ""


def _call_in_fork(case: dict[str, Any], encoding: Any, limit_s: float) -> dict[str, Any]:
    """The answer of a call made in a fork of this process, or how the fork ended."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _answer_into(writing, case, encoding)
    os.close(writing)
    data, hung = _read(reading, time.monotonic() + limit_s)
    os.close(reading)
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if hung:
        return {"hang": limit_s}
    try:
        answer = json.loads(data)
    except ValueError:
        return {"crash": f"signal {status & 127}" if status & 127 else f"exit code {status >> 8}"}
    return answer if isinstance(answer, dict) else {"crash": "no answer"}


def _read(descriptor: int, until: float) -> tuple[bytes, bool]:
    data = b""
    while True:
        ready, _, _ = select.select([descriptor], [], [], max(0.0, until - time.monotonic()))
        if not ready:
            return data, True
        block = os.read(descriptor, 1 << 16)
        if not block:
            return data, False
        data += block


def _answer_into(descriptor: int, case: dict[str, Any], encoding: Any) -> None:
    """Runs in the fork: writes one answer and exits."""
    leave = os._exit
    try:
        data = json.dumps(_answer(case, encoding)).encode()
        if len(data) > _MAX:
            data = json.dumps({"digest": hashlib.sha256(data).hexdigest()}).encode()
        while data:
            data = data[os.write(descriptor, data) :]
    except BaseException:  # noqa: BLE001
        leave(70)
    leave(0)


def _answer(case: dict[str, Any], encoding: Any) -> dict[str, Any]:
    args = encoding.decode(case["args"])
    kwargs = encoding.decode(case["kwargs"])
    printed = sys.stdout = io.StringIO()
    try:
        return_value = _function(case, encoding)(*args, **kwargs)
        if inspect.iscoroutine(return_value):
            return_value = asyncio.run(return_value)
        result = {"result": encoding.encode(return_value)}
    except BaseException as error:  # noqa: BLE001  # what it raises is its answer
        result = {"raised": [kind.__name__ for kind in type(error).__mro__], "meant": _meant(error)}
    return {**result, "after": encoding.encode([args, kwargs]), "printed": printed.getvalue()[:4_000]}


def _function(case: dict[str, Any], encoding: Any) -> Any:
    holder: Any = sys.modules[case["module"]]
    *owners, name = case["function"].split(".")
    for owner in owners:
        holder = getattr(holder, owner)
    if case["new"] is not None:
        holder = holder(*encoding.decode(case["new"]["args"]), **encoding.decode(case["new"]["kwargs"]))
        if isinstance(inspect.getattr_static(holder, name), property):
            return lambda: getattr(holder, name)
    return getattr(holder, name)


def _meant(error: BaseException) -> bool:
    """Whether a `raise` statement of the workspace raised it, rather than an operation that failed."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or not trace.tb_frame.f_code.co_filename.startswith(os.getcwd()):
        return False
    return trace.tb_frame.f_code.co_code[trace.tb_lasti] == dis.opmap["RAISE_VARARGS"]


if __name__ == "__main__":
    main()
