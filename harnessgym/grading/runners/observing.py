"""Runs variants of tests with pytest, each test file in its own process, and reports the observed values.

Runs in a fresh sandbox by way of `starting.py`, with the job on stdin: `{"nonce", "pycache_prefix",
"encoding", "sources", "files", "tests": {file: [test functions], or null for all}, "forms", "seed", "twins":
{file: file}, "test_s", "hangs", "values"}`. `encoding` is the text of `encoding.py`; `sources` are as in
`testing.py`. Of the parametrised forms of a test, `forms` run, chosen by the seed; in a file of `twins`,
those of the other file. At most `values` values are reported of a test. After `hangs` tests that take longer
than `test_s` seconds, no more are run: the others count as hanging too.

Variants call the builtins `__observe__` and `__observing__` (see `harnessgym.grading.by_value.variants`). A
workspace that is prepared for it calls `__reached__` with the name of each function that runs.

pytest and its plugins are imported before `sys.pycache_prefix` is set: compiling them takes longer than most
tests do.
Nothing of the workspace is. Answers are written to a private descriptor, one a line: the nonce, then JSON in
hexadecimal. Nothing is judged here. The code under test can change its own values only, and the right ones
are elsewhere.
"""

from __future__ import annotations

import builtins
import collections.abc
import gc
import hashlib
import importlib
import itertools
import json
import operator
import os
import select
import signal
import sys
import tempfile
import time
import types
from typing import Any

_MAX = 4_096
"""Longest value, in bytes; of a longer one only the digest is sent."""


class Observer:
    """Collects the values of one test, a group for each assertion.

    Inactive in the process that collects the tests.
    """

    def __init__(self, encoding: Any, most: int) -> None:
        self._encode = encoding.encode
        self._left = most
        self._recording = False
        self._depth = 0
        self.groups: list[list[Any]] | None = None

    def observe(self, value: Any) -> Any:
        """Records a value and returns it."""
        # Recording must not observe what recording itself calls, such as a `repr`.
        if self.groups and self._depth and not self._recording and self._left:
            self._left -= 1
            self._recording = True
            try:
                self.groups[-1].append(self._recorded(value))
            finally:
                self._recording = False
        return value

    def __enter__(self) -> None:
        """Begins a group, unless another is open: an assertion may call a helper that has some."""
        self._depth += 1
        if self.groups is not None and self._depth == 1:
            self.groups.append([])

    def __exit__(self, _: object, error: BaseException | None, trace: types.TracebackType | None) -> bool:
        """Records an error and ends the group. The test goes on."""
        self._depth -= 1
        if error is None or self.groups is None or self._depth:
            return False
        names = [kind.__name__ for kind in type(error).__mro__]
        if not isinstance(error, Exception) and names[0] != "Failed":
            return False  # skipped, or interrupted
        self.groups[-1].append({"$raised": names, "meant": _meant(error)})
        return True

    def _recorded(self, value: Any) -> Any:
        # Reading an iterator would leave nothing of it for the test.
        if isinstance(value, collections.abc.Iterator):
            return {"$opaque": "iterator", "text": ""}
        try:
            text = json.dumps(self._encode(value))
        except Exception as error:  # noqa: BLE001  # whatever a value does when it is read
            return {"$opaque": "unreadable", "text": type(error).__name__}
        if len(text) > _MAX:
            return {"$digest": hashlib.sha256(text.encode()).hexdigest()}
        return json.loads(text)


class ForkingReporter:
    """A pytest plugin: runs each file's tests in a fork, and reports what each observed and how it ended."""

    def __init__(self, say: Any, observer: Observer, job: dict[str, Any]) -> None:
        self._say = say
        self._observer = observer
        self._limit_s = job["test_s"]
        self._hangs_left = job["hangs"]
        self._wanted = job["tests"]
        self._forms = job["forms"]
        self._seed = job["seed"]
        self._twins = job.get("twins", {})
        self._reached = set[str]()
        builtins.__reached__ = self._reached.add  # type: ignore[attr-defined]
        self._raised: list[Any] = []
        import _pytest.runner

        self._protocol = _pytest.runner.runtestprotocol

    def pytest_runtestloop(self, session: Any) -> bool:
        """Runs all tests. After one that hangs or ends its process, its file goes on in a new fork."""
        items = session.items
        while items:
            _, together = next(itertools.groupby(items, operator.attrgetter("path")))
            items = items[self._in_fork(list(together)) :]
        return True

    def pytest_runtest_makereport(self, item: Any, call: Any) -> None:  # noqa: ARG002
        """Records what a phase of a test raised, and whether a `raise` statement did."""
        if call.excinfo is not None:
            error = call.excinfo.value
            names = [kind.__name__ for kind in type(error).__mro__]
            self._raised.append([call.when, names, _meant(error)])

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Keeps the wanted tests, and some forms of each."""
        forms: dict[tuple[str, str], list[Any]] = {}
        for item in items:
            file, _, test = item.nodeid.partition("::")
            function = test.partition("[")[0]
            wanted = self._wanted.get(file, ())
            if wanted is None or function in wanted:
                forms.setdefault((file, function), []).append(item)
        items[:] = [
            item for group in forms.values() for item in sorted(group, key=self._drawn)[: self._forms]
        ]

    def pytest_collection_finish(self) -> None:
        """Reports what ran at import. Keeps the garbage collector from writing to memory that forks share."""
        self._say(imported=sorted(self._reached))
        gc.freeze()

    def _drawn(self, item: Any) -> bytes:
        """A key that orders the forms of a test by the seed, in every version alike."""
        file, _, test = item.nodeid.partition("::")
        name = f"{self._seed} {self._twins.get(file, file)}::{test}"
        return hashlib.sha256(name.encode(errors="replace")).digest()

    def pytest_collectreport(self, report: Any) -> None:
        """Reports a file that could not be collected."""
        if report.outcome != "passed":
            self._say(uncollected=report.nodeid, why=str(report.longrepr)[-300:])

    def _in_fork(self, items: list[Any]) -> int:
        """Runs tests of one file, at most to the first without an answer. Returns how many were reported."""
        if not self._hangs_left:
            self._say(case=items[0].nodeid, hang=self._limit_s)
            return 1
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            self._answer_into(writing, items)
        os.close(writing)
        answers = AnswerReader(reading)
        done = 0
        for item in items:
            done += 1
            line = answers.next_line(time.monotonic() + self._limit_s)
            if line is None:
                self._hangs_left -= 1
                self._say(case=item.nodeid, hang=self._limit_s)
                break
            if not line:
                _, status = os.waitpid(child, 0)
                child = 0
                self._say(case=item.nodeid, crash=_end_of(status))
                break
            self._say(case=item.nodeid, **_parsed(line))
        os.close(reading)
        if child:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        return done

    def _answer_into(self, descriptor: int, items: list[Any]) -> None:
        """Runs in the fork: runs the tests, writes a line for each with what it observed, and exits."""
        leave = os._exit
        try:
            for item in items:
                groups = self._observer.groups = []
                self._raised.clear()
                self._reached.clear()  # importing reaches functions too
                self._protocol(item, log=False, nextitem=None)
                self._observer.groups = None
                answer = {"groups": groups, "raised": self._raised, "reached": sorted(self._reached)}
                data = json.dumps(answer).encode() + b"\n"
                while data:
                    data = data[os.write(descriptor, data) :]
        except BaseException:  # noqa: BLE001
            leave(70)
        leave(0)


class AnswerReader:
    """Reads lines from a descriptor, each with a deadline."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._read = bytearray()

    def next_line(self, until: float) -> bytes | None:
        """The next line, empty if the descriptor was closed before its end; None after the deadline."""
        while (end := self._read.find(b"\n")) < 0:
            ready, _, _ = select.select([self._descriptor], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                return None
            block = os.read(self._descriptor, 1 << 16)
            if not block:
                return b""
            self._read += block
        line = bytes(self._read[: end + 1])
        del self._read[: end + 1]
        return line


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(line)
    except ValueError:
        answer = None
    return answer if isinstance(answer, dict) else {"crash": "no answer"}


def _end_of(status: int) -> str:
    return f"signal {status & 127}" if status & 127 else f"exit code {status >> 8}"


def _meant(error: BaseException) -> bool:
    """Whether a `raise` statement raised it, rather than an operation that failed."""
    import dis

    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_code.co_code[trace.tb_lasti] == dis.opmap["RAISE_VARARGS"]


def main() -> None:
    """Reads the job from stdin, runs the tests and writes what they observe to the private descriptor."""
    leave = os._exit
    out = os.dup(1)
    os.dup2(2, 1)
    job = json.loads(sys.stdin.buffer.read())
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for name in ("PYTEST_ADDOPTS", "PYTEST_PLUGINS"):
        os.environ.pop(name, None)
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    import _pytest.config
    import pytest

    for name in _pytest.config.default_plugins:
        importlib.import_module(f"_pytest.{name}")
    sys.pycache_prefix = job["pycache_prefix"]
    encoding: Any = types.ModuleType("encoding")
    exec(job["encoding"], encoding.__dict__)  # noqa: S102  # our own text; there is no file to import
    start = job["nonce"].encode()

    def say(**answer: Any) -> None:
        line = b"%s %s\n" % (start, json.dumps(answer).encode().hex().encode())
        while line:
            line = line[os.write(out, line) :]

    observer = Observer(encoding, job["values"])
    builtins.__observe__ = observer.observe  # type: ignore[attr-defined]
    builtins.__observing__ = observer  # type: ignore[attr-defined]
    say(began=True)
    folder = _lay(job["files"])
    _open(job["sources"])
    options = ["-q", "--color=no", "--tb=no", "--assert=plain", "-p", "no:cacheprovider", "--noconftest"]
    options += ["-c", os.devnull, "--rootdir", folder, "--import-mode=importlib"]
    options += ["--continue-on-collection-errors"]
    tests = [os.path.join(folder, path) for path in job["tests"]]
    code = pytest.main([*options, *tests], plugins=[ForkingReporter(say, observer, job)])
    say(ended=int(code))
    leave(0)


def _open(sources: list[str]) -> None:
    """Makes the workspace importable, as `testing.py` does."""
    here = os.getcwd()
    installed = [at for at, path in enumerate(sys.path) if path.endswith(("site-packages", "dist-packages"))]
    at = min(installed, default=len(sys.path))
    sys.path[at:at] = [os.path.normpath(os.path.join(here, source)) for source in sources]
    if not sources:
        sys.path.append(here)


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
