"""Runs `pytest` checks inside the container that the tests run in, beside `contained.py`.

The report is made and checked as in `harnessgym.grading.checks.pytests`, with the same programs.
`testing.py` runs pytest in a process of its own over tests in a new folder, and loads no conftest.py,
pytest.ini, sitecustomize.py or plugin of the workspace. `relaying.py` signs what it reports.
`pytest_report.py` checks that ids, phases, exit codes and canaries agree.

If this runs as root, that process runs as a user with no other process. The user can write neither to the
folder of the reward nor to this process, and all its processes are dead when the result is read. Without
root, code under test can write the reward itself.

Even with root, results can be forged: the code under test shares a process with pytest, so it can report
there what it likes, if it tells the expected tests from the canaries. And if the agent was root in the
container, it may have changed python3 or pytest there.
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
"""A user and group id that no image uses, so that all its processes can be killed."""
_END = "import os, signal; os.kill(-1, signal.SIGKILL)"
"""Ends every process of the user that runs it."""

Runner = Callable[..., tuple[int | None, bytes]]
"""`contained.run`: argv, folder, stdin, seconds, `user`, variables -> exit code and output."""


class PytestJudge:
    """Runs `pytest` checks.

    Reads every file that it needs when it is made, before any code of the agent's runs.
    """

    def __init__(self, here: Path, names: Sequence[str], run: Runner) -> None:
        """`names` are the task's test files below the folder `here`."""
        from canaries import Canaries  # type: ignore[import-not-found,unused-ignore]
        from pytest_report import PytestReport, count  # type: ignore[import-not-found,unused-ignore]

        self._draw = Canaries.draw
        self._parse = PytestReport.parse
        self._count = count
        self._run = run
        self._texts = {name: (here / name).read_bytes().decode() for name in names}
        relaying, *programs = [
            (here / name).read_text(encoding="utf-8") for name in ("relaying.py", "starting.py", "testing.py")
        ]
        self._command = [sys.executable, "-I", "-B", "-c", relaying]
        self._programs = programs
        self._user = STRANGER if os.geteuid() == 0 else None

    def judge(self, check: dict[str, Any], place: Path) -> tuple[str, float]:
        """What is wrong (empty if nothing), and 1.0 or 0.0. Raises SystemExit if pytest cannot be started."""
        nonce = secrets.token_hex(16)
        canaries = self._draw(self._texts, check["files"], check["expect"])
        tests = {
            "files": {**self._texts, **canaries.files},
            "order": canaries.order,
            "without": check["without"],
            "sources": check["sources"],
        }
        job = {"nonce": nonce, "programs": self._programs, "tests": tests}
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
        """Runs pytest in the copy of the workspace, as the user `STRANGER` if this process is root."""
        home = Path(tempfile.mkdtemp(prefix="home-"))
        try:
            for folder in (place, home):
                give(folder, self._user)
            stdin = json.dumps(job).encode()
            env = {"HOME": str(home), "TMPDIR": str(home)}
            return self._run(self._command, place, stdin, seconds, user=self._user, **env)
        except OSError as error:
            who = "" if self._user is None else f" as the user {self._user}"
            raise SystemExit(f"{sys.executable} could not be started{who}: {error}") from error
        finally:
            end(self._user)
            shutil.rmtree(home, ignore_errors=True)


def give(folder: Path, user: int | None) -> None:
    """Gives a folder and everything in it to a user."""
    if user is None:
        return
    os.chown(folder, user, user)
    for where, folders, names in os.walk(folder):
        for name in (*folders, *names):
            os.chown(os.path.join(where, name), user, user, follow_symlinks=False)


def end(user: int | None) -> None:
    """Kills every process of a user."""
    if user is not None:
        argv = [sys.executable, "-I", "-S", "-c", _END]
        subprocess.run(argv, check=False, user=user, group=user, extra_groups=[], stderr=subprocess.DEVNULL)
