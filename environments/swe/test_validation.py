"""Runs a package's tests in a sandbox: without a fault, to find the reliable tests, and with faults.

The runner is the grader's own, so tests have the same names and results as in grading.
"""

import hashlib
import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from environments.swe.tree import Tree, clocked
from harnessgym.errors import TaskError
from harnessgym.grading.pytest_report import PytestReport
from harnessgym.sandbox import Sandbox
from harnessgym.task import Limits

LIMITS = Limits(wall_s=600.0, memory_mb=1_024, disk_mb=256)
FACTOR = 6.0
"""Time limit of a run with a fault, as a multiple of a run without one."""
_SLACK_S = 10.0
_PRISTINE_S = 120.0
_RUNS = (("UTC", "0", False), ("Asia/Kathmandu", "1", True), ("America/St_Johns", "2", False))
"""Time zone, hash seed, and reversed file order for each run without a fault."""


@dataclass(frozen=True, slots=True)
class PytestRun:
    """The result of one run of the tests."""

    passed: frozenset[str]
    others: frozenset[str]
    """Collected tests that did not pass: failed, skipped, expected to fail, or reported more than once."""
    uncollected: tuple[str, ...]
    facts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Failed test to the facts of its failure."""
    seconds: float = 0.0
    ended: str = ""
    """Why the run did not finish, if it did not."""


class FaultBench:
    """A sandbox with a package in its workspace, where faults are tried one after another."""

    def __init__(self, tree: Tree, sandbox: Sandbox) -> None:
        self.tree = tree
        self._sandbox = sandbox
        self._changed: set[str] = set()

    async def furnish(self, folder: Path) -> None:
        """Uploads the package's files, by way of an empty folder on this machine."""
        for path, text in self.tree.files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text, encoding="utf-8", newline="")
        for child in sorted(folder.iterdir()):
            await self._sandbox.upload(child, child.name)

    async def change(self, changed: Mapping[str, str]) -> None:
        """Writes the changed files and restores all others to their original texts."""
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
        """Runs all graded tests except `without`. With `seed=None` it does exactly what grading does."""
        # `-I`, which grading uses, ignores PYTHONHASHSEED. A run with a seed needs weaker flags.
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
        """Finds the reliable tests without a fault. Raises TaskError if a run does not finish."""
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
    """The tests of a package without a fault."""

    tests: tuple[str, ...]
    """Tests that passed in every run and use no clock."""
    without: tuple[str, ...]
    """All other collected tests."""
    seconds: float
    """Duration of the longest run."""

    @property
    def limit_s(self) -> float:
        """Time limit for a run with a fault, in seconds."""
        return self.seconds * FACTOR + _SLACK_S


def version() -> str:
    """A digest of the programs that run. It is part of the key of cached proofs."""
    return hashlib.sha256((_text("observer.py") + _runner()).encode()).hexdigest()[:16]


def _facts(output: bytes, nonce: str) -> tuple[bytes, dict[str, dict[str, Any]]]:
    """Separates the runner's own lines from the observer's facts."""
    start = f"{nonce} {b'fact'.hex()} ".encode()
    own: list[bytes] = []
    facts: dict[str, dict[str, Any]] = {}
    for line in output.splitlines():
        if line.startswith(start):
            test, fact_json = (bytes.fromhex(word.decode()).decode() for word in line.split(b" ")[2:])
            facts.setdefault(test, json.loads(fact_json))
        else:
            own.append(line)
    return b"\n".join(own), facts


def _text(name: str) -> str:
    return (files("environments.swe") / name).read_text(encoding="utf-8")


def _runner() -> str:
    return (files("harnessgym.grading.runners") / "testing.py").read_text(encoding="utf-8")
