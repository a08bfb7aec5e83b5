"""Runs of a package's tests in a sandbox: before any fault, to learn which tests can be relied on, and with
faults.

The runner is the grader's own, so that a test's name and its verdict are what grading will find.
"""

import hashlib
import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from environments.swe.clock import clocked
from environments.swe.tree import Tree
from harnessgym.errors import TaskError
from harnessgym.grading.pytest_report import PytestReport
from harnessgym.sandbox import Sandbox
from harnessgym.task import Limits

LIMITS = Limits(wall_s=600.0, memory_mb=1_024, disk_mb=256)
FACTOR = 6.0
"""A run with a fault may take so many times what one without takes."""
_SLACK_S = 10.0
_PRISTINE_S = 120.0
_RUNS = (("UTC", "0", False), ("Asia/Kathmandu", "1", True), ("America/St_Johns", "2", False))
"""Time zone, hash seed, and whether the files are run in the opposite order, of each run before any fault."""


@dataclass(frozen=True, slots=True)
class PytestRun:
    """What one run of the tests said."""

    passed: frozenset[str]
    others: frozenset[str]
    """Collected, and not passed: failed, skipped, expected to fail, or reported more than once."""
    uncollected: tuple[str, ...]
    facts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Test to what made it fail."""
    seconds: float = 0.0
    ended: str = ""
    """Why the run did not come to its end, if it did not."""


class FaultBench:
    """A sandbox with a package in its workspace, in which one fault after another is tried."""

    def __init__(self, tree: Tree, sandbox: Sandbox) -> None:
        self.tree = tree
        self._sandbox = sandbox
        self._changed: set[str] = set()

    async def furnish(self, folder: Path) -> None:
        """Lays the files, through an empty folder of this machine."""
        for path, text in self.tree.files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text, encoding="utf-8", newline="")
        for child in sorted(folder.iterdir()):
            await self._sandbox.upload(child, child.name)

    async def change(self, changed: Mapping[str, str]) -> None:
        """Makes these files what they are given as, and every other what it was before any fault."""
        for path in self._changed - set(changed):
            await self._sandbox.write(path, self.tree.files[path].encode())
        for path, text in changed.items():
            await self._sandbox.write(path, text.encode())
        self._changed = set(changed)

    async def run(
        self,
        without: Sequence[str],
        limit_s: float,
        *,
        seed: str | None = "0",
        zone: str = "UTC",
        back: bool = False,
    ) -> PytestRun:
        """One run of all graded tests but `without`. Without a hash seed it is exactly what grading does."""
        tree = self.tree
        nonce = secrets.token_hex(8)
        order = list(reversed(tree.graded)) if back else list(tree.graded)
        job = {"nonce": nonce, "files": dict(tree.tests), "order": order, "without": list(without)}
        job["sources"] = list(tree.package.sources)
        flags = ["-I", "-B"] if seed is None else ["-s", "-P", "-B"]
        env = {"TZ": zone} | ({} if seed is None else {"PYTHONHASHSEED": seed})
        command = ["python3", *flags, "-c", _text("observer.py"), _runner()]
        result = await self._sandbox.exec(command, stdin=json.dumps(job).encode(), timeout_s=limit_s, env=env)
        lines, facts = _facts(result.stdout, nonce)
        report = PytestReport.parse(lines, nonce)
        if not report.began and not result.timed_out:
            raise TaskError(f"{tree.package.name}: pytest did not start: {result.describe()}.")
        stopped = result.timed_out or report.ended not in ("0", "1")
        others = frozenset(report.collected) - report.passed
        ended = result.describe(300) if stopped or report.foreign else ""
        return PytestRun(report.passed, others, tuple(report.uncollected), facts, result.wall_s, ended)

    async def pristine(self) -> "Stable":
        """What can be relied on before any fault. Raises TaskError when a run does not come to its end."""
        runs = [
            await self.run((), _PRISTINE_S, zone=zone, seed=seed, back=back) for zone, seed, back in _RUNS
        ]
        runs.append(await self.run((), _PRISTINE_S, seed=None))
        for run in runs:
            if run.ended or run.uncollected:
                why = run.ended or run.uncollected[0]
                raise TaskError(f"{self.tree.package.name}: its tests cannot be run as they are: {why}")
        timed = clocked(self.tree)
        passed = frozenset.intersection(*(run.passed for run in runs))
        passed = frozenset(test for test in passed if test.partition("[")[0] not in timed)
        known = frozenset().union(*(run.passed | run.others for run in runs))
        return Stable(tuple(sorted(passed)), tuple(sorted(known - passed)), max(run.seconds for run in runs))


@dataclass(frozen=True, slots=True)
class Stable:
    """The tests of a package before any fault."""

    tests: tuple[str, ...]
    """Passed in every run."""
    without: tuple[str, ...]
    """Every other test that was collected."""
    seconds: float
    """What the longest run took."""

    @property
    def limit_s(self) -> float:
        """What a run with a fault may take."""
        return self.seconds * FACTOR + _SLACK_S


def version() -> str:
    """Changes whenever what is run does."""
    return hashlib.sha256((_text("observer.py") + _runner()).encode()).hexdigest()[:16]


def _facts(output: bytes, nonce: str) -> tuple[bytes, dict[str, dict[str, Any]]]:
    """The runner's own lines, and what the observer said besides."""
    start = f"{nonce} {b'fact'.hex()} ".encode()
    own: list[bytes] = []
    facts: dict[str, dict[str, Any]] = {}
    for line in output.splitlines():
        if line.startswith(start):
            test, said = (bytes.fromhex(word.decode()).decode() for word in line.split(b" ")[2:])
            facts.setdefault(test, json.loads(said))
        else:
            own.append(line)
    return b"\n".join(own), facts


def _text(name: str) -> str:
    return (files("environments.swe") / name).read_text(encoding="utf-8")


def _runner() -> str:
    return (files("harnessgym.grading.runners") / "testing.py").read_text(encoding="utf-8")
