"""Runs pytest over a task's own tests and reports each phase of each test on a private descriptor.

Runs in a grading sandbox by way of `starting.py`, with the job on stdin: `{"nonce", "files", "order"}`, and
optionally `"without"` (ids not to run) and `"sources"` (folders to import from). The tests are written,
read-only, to a new folder beside the workspace. Nothing of the workspace is read before pytest is
imported. Then the workspace comes last on `sys.path`, or `sources` come before installed packages. Its
conftest.py, pytest.ini, pyproject.toml, `.pth` files and plugins are never loaded.

Functions that are used after the code under test may have run are bound beforehand, and are C functions: they
cannot be patched by setting an attribute of a module.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from typing import Any


class Reporter:
    """A pytest plugin that reports each event on a line: the nonce, then words in hexadecimal."""

    def __init__(self, nonce: str, out: int, without: list[str]) -> None:
        self._start = nonce.encode()
        self._out = out
        self._write = os.write
        self._without = frozenset(without)

    def say(self, *words: str) -> None:
        """Writes one line."""
        self._write(
            self._out, b" ".join([self._start, *[word.encode().hex().encode() for word in words]]) + b"\n"
        )

    def pytest_collectreport(self, report: Any) -> None:
        """Reports a file that could not be collected, and why."""
        if report.outcome != "passed":
            self.say("uncollected", report.outcome, report.nodeid, str(report.longrepr)[-500:])

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Deselects the tests in `without`."""
        items[:] = [item for item in items if item.nodeid not in self._without]

    def pytest_collection_finish(self, session: Any) -> None:
        """Reports the tests that will run."""
        for item in session.items:
            self.say("collected", item.nodeid)

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Reports one phase of one test. An expected failure is neither passed nor failed."""
        outcome = "xfail" if hasattr(report, "wasxfail") else report.outcome
        self.say("phase", report.nodeid, report.when, outcome, str(report.longrepr or "")[-500:])


def main() -> None:
    """Reads the job from stdin and runs pytest."""
    leave = os._exit
    out = os.dup(1)
    os.dup2(2, 1)
    job = json.loads(sys.stdin.buffer.read())
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for name in ("PYTEST_ADDOPTS", "PYTEST_PLUGINS"):
        os.environ.pop(name, None)
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    import pytest

    # pytest keeps compiled forms of test modules of its own, and would take one that lies in the workspace.
    sys.pycache_prefix = f"/nonexistent/{job['nonce']}"
    reporter = Reporter(job["nonce"], out, job.get("without", []))
    folder = _lay(job["files"])
    _open(job.get("sources", []))
    options = ["-c", os.devnull, "--noconftest", "--rootdir", folder, "-p", "no:cacheprovider"]
    options += ["--import-mode=importlib"]
    options += ["--continue-on-collection-errors", "--strict-markers", "-q", "--color=no", "--tb=short"]
    reporter.say("began", pytest.__version__)
    code = pytest.main([*options, *[os.path.join(folder, path) for path in job["order"]]], plugins=[reporter])
    reporter.say("ended", str(int(code)))
    leave(int(code))


def _open(sources: list[str]) -> None:
    """Makes the workspace importable."""
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
        os.chmod(target, 0o400)
    for where, _, _ in os.walk(folder):
        os.chmod(where, 0o500)
    return folder


if __name__ == "__main__":
    main()
