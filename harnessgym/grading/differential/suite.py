"""Runs the developers' own tests on a candidate: those that pass on the gold solution must pass.

Tests, fixtures and pytest's configuration come from the gold workspace. The candidate's versions of them are
removed first.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio.to_thread

from harnessgym.errors import SandboxError
from harnessgym.grading.differential.functions import is_test, python_files
from harnessgym.grading.differential.probe import Probe, probe, program
from harnessgym.grading.verifier import Opener
from harnessgym.sandbox import Sandbox

_CONFIGURATION = ("pytest.ini", ".pytest.ini", "tox.ini", "setup.cfg", "pyproject.toml")
_SHOWN = 20


@dataclass(frozen=True, slots=True)
class SuiteResult:
    """The result of the developers' tests."""

    passed: int
    failed: tuple[str, ...]
    """Tests that pass twice on the gold solution but not on the candidate."""
    why: str = ""
    """Why there is no result, if there is none."""

    def told(self) -> dict[str, Any]:
        """As JSON values."""
        verdict = "unknown" if self.why else "failed" if self.failed else "passed"
        found: dict[str, Any] = {
            "verdict": verdict,
            "passed": self.passed,
            "failed": list(self.failed[:_SHOWN]),
        }
        return {**found, "why": self.why} if self.why else found


def own_tests(gold: Path) -> list[str]:
    """The test files of a workspace that pytest collects."""
    files = [file for file in python_files(gold) if is_test(file)]
    return [file for file in files if is_collected(file)]


def is_collected(file: str) -> bool:
    """Whether pytest collects a file by its name."""
    name = file.rpartition("/")[2]
    return name.endswith(".py") and (name.startswith("test_") or name.endswith("_test.py"))


async def run_suite(
    first: Probe,
    gold: Path,
    candidate: Path,
    place: Opener,
    gold_place: Opener,
    job: Mapping[str, Any],
    timeout_s: float,
) -> SuiteResult:
    """Runs the tests again on the gold solution, then on the candidate.

    `first` is an earlier run on the gold solution. Raises SandboxError when a sandbox failed.
    """
    # Two runs on gold: a flaky test must not count against the candidate.
    async with gold_place() as sandbox:
        again = await probe(sandbox, program("tracing"), job, timeout_s)
    if not (first.ended and again.ended):
        return SuiteResult(0, (), "the developers' tests do not come to an end on the gold solution")
    wanted = _passed(first) & _passed(again)
    if not wanted:
        return SuiteResult(0, (), "none of the developers' tests passes on the gold solution")
    async with place() as sandbox:
        await _lay_tests(gold, candidate, sandbox)
        found = await probe(sandbox, program("tracing"), job, timeout_s)
    if found.forged:
        return SuiteResult(0, (), "the results hold lines that the runner did not write")
    if not found.began:
        return SuiteResult(0, (), "the runner did not start beside the candidate")
    passed = _passed(found) & wanted
    return SuiteResult(len(passed), tuple(sorted(wanted - passed)))


def _passed(run: Probe) -> frozenset[str]:
    tests = [(line["test"], line.get("passed")) for line in run.lines if isinstance(line.get("test"), str)]
    failed = {test for test, passed in tests if passed is not True}
    return frozenset(test for test, passed in tests if passed is True and test not in failed)


async def _lay_tests(gold: Path, candidate: Path, sandbox: Sandbox) -> None:
    ours, theirs = await anyio.to_thread.run_sync(lambda: (_kept(gold), _kept(candidate)))
    names = b"\0".join(path.encode() for path in sorted({*ours, *theirs}))
    if names:
        done = await sandbox.exec(["xargs", "-0", "rm", "-rf", "--"], stdin=names, timeout_s=60.0)
        if not done.ok:
            raise SandboxError(f"Test files could not be replaced in a sandbox: {done.describe(300)}.")
    for path in ours:
        await sandbox.write(path, await anyio.to_thread.run_sync((gold / path).read_bytes))


def _kept(folder: Path) -> Sequence[str]:
    found = [file for file in python_files(folder) if is_test(file)]
    return [*found, *(name for name in _CONFIGURATION if (folder / name).is_file())]
