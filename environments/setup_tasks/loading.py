"""Imports modules and collects tests of a workspace, and reports the results.

Runs in a fresh sandbox as `python3 -I -B -c <this text>` in the repository, with the job on stdin: `{"nonce",
"pycache_prefix", "roots", "modules", "files"}`. The roots come last on `sys.path`; each import has a process
of its own. The test files are written to a new folder and collected without any configuration of the
workspace. Results are written to a private descriptor, a line each: the nonce, then JSON in hexadecimal.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import tempfile
from typing import Any


class Collector:
    """A pytest plugin that reports the collected tests."""

    def __init__(self, say: Any) -> None:
        self._say = say

    def pytest_collection_finish(self, session: Any) -> None:
        """Reports the ids of the collected tests."""
        for item in session.items:
            self._say(test=item.nodeid)


def main() -> None:
    """Reads the job from stdin and runs it."""
    out = os.dup(1)
    os.dup2(2, 1)
    job = json.loads(sys.stdin.buffer.read())
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    import pytest

    start = job["nonce"].encode()

    def say(**answer: Any) -> None:
        line = b"%s %s\n" % (start, json.dumps(answer).encode().hex().encode())
        while line:
            line = line[os.write(out, line) :]

    say(began=True)
    # The workspace is no part of `sys.path` until here, so pytest is the interpreter's own.
    sys.pycache_prefix = job["pycache_prefix"]
    sys.path += job["roots"]
    for module in job["modules"]:
        child = os.fork()
        if child == 0:
            say(module=module, problem=_import(module))
            os._exit(0)
        os.waitpid(child, 0)
    folder = os.path.realpath(tempfile.mkdtemp(prefix="tests-"))
    for path, text in job["files"].items():
        target = os.path.join(folder, path)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(target, "w", encoding="utf-8", newline="") as file:
            file.write(text)
    options = [
        "--collect-only",
        "-c",
        os.devnull,
        "--noconftest",
        "--rootdir",
        folder,
        "-p",
        "no:cacheprovider",
    ]
    options += ["--import-mode=importlib", "--continue-on-collection-errors", "-q", "--color=no"]
    pytest.main([*options, folder], plugins=[Collector(say)])
    say(ended=True)


def _import(name: str) -> str:
    try:
        importlib.import_module(name)
    except Exception as error:  # noqa: BLE001  # any error is the result
        return f"{type(error).__name__}: {str(error)[:300]}"
    return ""


if __name__ == "__main__":
    main()
