"""Judges the kind `pytest` from inside the container that tests are run in, beside `contained.py`.

The report is made and judged as `harnessgym.grading.checks.pytests` does, by the same texts: `testing.py`
runs pytest in a process of its own over tests laid in a new folder, where no conftest.py, pytest.ini,
sitecustomize.py or plugin of the workspace is looked for; `pytest_report.py` holds ids, phases, exit codes
and tests with random names against each other.

If this runs as root, that process is of a user that nobody else is, who can write neither where the reward is
written nor this process, and of whom nothing is left when its result is read. Without root, code under test
can write the reward itself.

What stays forgeable, with root too: the code under test shares a process with pytest and can read the nonce
from its memory, then report exactly the tests that are expected. And the container is the agent's: who was
root in it may have changed its python3 or its pytest.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

STRANGER = 60_917
"""A user and group that no image has, so that whatever is of it can be ended."""
_END = "import os, signal; os.kill(-1, signal.SIGKILL)"
"""Ends every process of the user that runs it."""

Runner = Callable[..., tuple[int | None, bytes]]
"""`contained.run`: argv, folder, stdin, seconds, `user`, variables -> exit code and output."""


class PytestJudge:
    """The judge, with everything it needs read before anything of the agent's runs."""

    def __init__(self, here: Path, names: Sequence[str], run: Runner) -> None:
        """`names` are the task's test files below the folder `here`."""
        from pytest_report import (  # type: ignore[import-not-found,unused-ignore]
            Canaries,
            PytestReport,
            count,
        )

        self._draw = Canaries.draw
        self._parse = PytestReport.parse
        self._count = count
        self._run = run
        self._texts = {name: (here / name).read_bytes().decode() for name in names}
        self._program = (here / "testing.py").read_text(encoding="utf-8")
        self._user = STRANGER if os.geteuid() == 0 else None

    def judge(self, check: dict[str, Any], place: Path) -> tuple[str, float]:
        """What is wrong, and the part that passed. Raises SystemExit where pytest cannot be started at
        all.
        """
        nonce = secrets.token_hex(16)
        canaries = (self._draw(), self._draw())
        job = {
            "nonce": nonce,
            "files": {**self._texts, **{canary.path: canary.text for canary in canaries}},
            "order": [canaries[0].path, *check["files"], canaries[1].path],
            "without": check["without"],
            "sources": check["sources"],
        }
        code, output = self._tested(job, place, check["timeout_s"])
        if code is None:
            return "the tests did not end by themselves", 0.0
        report = self._parse(output, nonce)
        if not report.began:
            raise SystemExit(
                f"pytest did not start, python3 ended with {code}: the image needs python3 with pytest"
            )
        outcome = self._count(report, check["expect"], canaries, code)
        return "" if outcome.passed else outcome.detail, float(outcome.passed)

    def _tested(self, job: dict[str, Any], place: Path, seconds: float) -> tuple[int | None, bytes]:
        """Runs pytest in the copy of the workspace as the stranger, or as who this is."""
        home = Path(tempfile.mkdtemp(prefix="home-"))
        try:
            for folder in (place, home):
                give(folder, self._user)
            argv = [sys.executable, "-I", "-B", "-c", self._program]
            stdin = json.dumps(job).encode()
            env = {"HOME": str(home), "TMPDIR": str(home)}
            return self._run(argv, place, stdin, seconds, user=self._user, **env)
        except OSError as error:
            who = "" if self._user is None else f" as the user {self._user}"
            raise SystemExit(f"{sys.executable} could not be started{who}: {error}") from error
        finally:
            end(self._user)
            shutil.rmtree(home, ignore_errors=True)


def give(folder: Path, user: int | None) -> None:
    """Makes a folder and all below it a user's."""
    if user is None:
        return
    os.chown(folder, user, user)
    for where, folders, names in os.walk(folder):
        for name in (*folders, *names):
            os.chown(os.path.join(where, name), user, user, follow_symlinks=False)


def end(user: int | None) -> None:
    """Ends everything that is a user's."""
    if user is not None:
        argv = [sys.executable, "-I", "-S", "-c", _END]
        subprocess.run(argv, check=False, user=user, group=user, extra_groups=[], stderr=subprocess.DEVNULL)
