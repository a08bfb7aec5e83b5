"""Runs pytest; reports how each test ended, and the arguments with which tests called certain functions.

Runs in a fresh sandbox by way of `starting.py`, with the job on stdin: `{"nonce", "pycache_prefix",
"encoding", "roots", "files", "order", "own", "targets": {file: {first line: function}}, "classes":
{file: [name]}, "most"}`. Modules that the workspace could replace, pytest included, are imported only after
`sys.pycache_prefix` is set. The tests in `files` are written to a folder beside the workspace, and those in
`order` run without the workspace's configuration. The tests in `own` are in the workspace and run as their
developers run them. Answers have the format of `comparing.py`.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
import tempfile
import types
from collections.abc import Iterator
from typing import Any

_LONG = 10_000
"""Longest recorded call, in characters of its JSON."""


class CallRecorder:
    """A profile function that records the calls of target functions while a test runs."""

    def __init__(self, job: dict[str, Any], encoding: Any) -> None:
        here = os.getcwd()
        self.targets = {os.path.join(here, file): (file, lines) for file, lines in job["targets"].items()}
        self.classes = {
            (os.path.join(here, file), name) for file, names in job["classes"].items() for name in names
        }
        self.most = job["most"]
        self.encode = encoding.encode
        self.seen: dict[tuple[str, str], dict[str, Any]] = {}
        self.made: dict[int, tuple[Any, Any]] = {}

    def __call__(self, frame: Any, event: str, _: Any) -> None:
        """For `sys.setprofile`."""
        if event != "call":
            return
        code = frame.f_code
        if code.co_name == "__init__" and code.co_argcount:
            self._remember(frame)
        if code.co_filename in self.targets:
            file, lines = self.targets[code.co_filename]
            name = lines.get(str(code.co_firstlineno))
            if name is not None and len(self.seen.get((file, name), ())) < self.most:
                self._record(file, name, frame)

    def _remember(self, frame: Any) -> None:
        """Records the arguments with which an object of a target class was constructed."""
        made = frame.f_locals[frame.f_code.co_varnames[0]]
        kind = type(made)
        file = getattr(sys.modules.get(kind.__module__), "__file__", None)
        if (
            (file, kind.__qualname__) in self.classes
            and id(made) not in self.made
            and len(self.made) < 10_000
        ):
            self.made[id(made)] = (made, self._arguments(frame, skip=1))

    def _record(self, file: str, name: str, frame: Any) -> None:
        new = None
        skip = 0
        bound = frame.f_code.co_varnames[:1] if "." in name and frame.f_code.co_argcount else ()
        if bound in (("self",), ("cls",)):
            skip = 1
            first = frame.f_locals[bound[0]]
            new = None if isinstance(first, type) else self.made.get(id(first), (None, None))[1]
            if new is None and not isinstance(first, type):
                return
        arguments = self._arguments(frame, skip)
        call = {"new": new, **(arguments or {})}
        text = json.dumps(call, sort_keys=True)
        if arguments is not None and len(text) <= _LONG:
            self.seen.setdefault((file, name), {}).setdefault(text, call)

    def _arguments(self, frame: Any, skip: int) -> dict[str, Any] | None:
        code = frame.f_code
        held = frame.f_locals
        names = list(code.co_varnames)
        plain = names[: code.co_argcount]
        named = names[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
        rest = code.co_argcount + code.co_kwonlyargcount
        args = [held[name] for name in plain[skip:]]
        kwargs = {name: held[name] for name in named}
        if code.co_flags & inspect.CO_VARARGS:
            args += held[names[rest]]
            rest += 1
        if code.co_flags & inspect.CO_VARKEYWORDS:
            kwargs |= held[names[rest]]
        try:
            return {"args": self.encode(args, exact=True), "kwargs": self.encode(kwargs, exact=True)}
        except (ValueError, KeyError, RecursionError):
            return None


class CallReporter:
    """A pytest plugin: records calls while a test runs, and reports how the test ended."""

    def __init__(self, say: Any, recorder: CallRecorder, pytest: Any) -> None:
        self._say, self._outcomes = say, dict[str, set[str]]()

        def watch(item: Any) -> Iterator[None]:  # noqa: ARG001
            if recorder.targets:
                sys.setprofile(recorder)
            try:
                yield
            finally:
                sys.setprofile(None)

        self.pytest_runtest_call = pytest.hookimpl(hookwrapper=True)(watch)

    def pytest_runtest_logreport(self, report: Any) -> None:
        """A test passes if each of its phases does."""
        outcome = "other" if hasattr(report, "wasxfail") else report.outcome
        self._outcomes.setdefault(report.nodeid, set()).add(outcome)
        if report.when == "teardown":
            self._say(test=report.nodeid, passed=self._outcomes[report.nodeid] == {"passed"})


def main() -> None:
    """Reads the job from stdin and runs pytest."""
    leave = os._exit
    out = os.dup(1)
    os.dup2(2, 1)
    job = json.loads(sys.stdin.buffer.read())
    sys.pycache_prefix = job["pycache_prefix"]
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for name in ("PYTEST_ADDOPTS", "PYTEST_PLUGINS"):
        os.environ.pop(name, None)
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    import pytest

    encoding: Any = types.ModuleType("encoding")
    exec(job["encoding"], encoding.__dict__)  # noqa: S102  # our own text; there is no file to import
    start = job["nonce"].encode()
    recorder = CallRecorder(job, encoding)

    def say(**answer: Any) -> None:
        line = b"%s %s\n" % (start, json.dumps(answer).encode().hex().encode())
        while line:
            line = line[os.write(out, line) :]

    say(began=True)
    sys.path[:0] = [os.path.normpath(os.path.join(os.getcwd(), root)) for root in job["roots"]]
    options = ["-q", "--color=no", "-p", "no:cacheprovider", "--continue-on-collection-errors"]
    if job["files"]:
        folder = _lay(job["files"])
        options += ["-c", os.devnull, "--noconftest", "--rootdir", folder, "--import-mode=importlib"]
        tests = [os.path.join(folder, path) for path in job["order"]]
    else:
        tests = job["own"]
        options += ["-o", "addopts="]  # they name plugins, none of which is loaded
    code = pytest.main([*options, *tests], plugins=[CallReporter(say, recorder, pytest)])
    for (file, name), calls in recorder.seen.items():
        for call in calls.values():
            say(file=file, function=name, call=call)
    say(ended=int(code))
    leave(0)


def _lay(files: dict[str, str]) -> str:
    folder = os.path.realpath(tempfile.mkdtemp(prefix="tests-"))
    for path, text in files.items():
        target = os.path.join(folder, path)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(target, "w", encoding="utf-8", newline="") as file:
            file.write(text)
    return folder


if __name__ == "__main__":
    main()
