"""Runs the developers' own tests on a candidate: those that pass on the gold solution must pass.

Tests, fixtures and pytest's configuration come from the gold workspace. The candidate's versions of them are
removed first.

A probe runs one of our programs in a fresh sandbox and reads what it writes to its private descriptor.
Every line starts with a nonce. The code under test shares a process with the program, so it could learn the
nonce and forge lines. So the suite's report is only evidence beside a grade: no reward depends on it. Where
one does (`harnessgym.grading.by_value`), what is forged must still be gold's values, which are elsewhere.
"""

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import anyio.to_thread

from harnessgym.errors import SandboxError
from harnessgym.grading import bytecode
from harnessgym.grading.differential.functions import is_test, python_files
from harnessgym.grading.matching import parse_json
from harnessgym.grading.verifier import Opener
from harnessgym.sandbox import ExecResult, Sandbox
from harnessgym.task import Grade


@dataclass(frozen=True, slots=True)
class Probe:
    """The result of one run."""

    lines: tuple[Mapping[str, Any], ...]
    foreign: int
    """Lines that the program did not write."""
    result: ExecResult

    @property
    def began(self) -> bool:
        """Whether the program started."""
        return any("began" in line for line in self.lines)

    @property
    def ended(self) -> bool:
        """Whether the program reached its end."""
        return not self.result.timed_out and bool(self.lines) and "ended" in self.lines[-1]

    @property
    def forged(self) -> bool:
        """Whether other code wrote lines: lines without the nonce, or more than one start or end."""
        edges = [sum(edge in line for line in self.lines) for edge in ("began", "ended")]
        return bool(self.foreign) or self.result.stdout_truncated or max(edges) > 1


async def probe(
    sandbox: Sandbox,
    program: str,
    job: Mapping[str, Any],
    timeout_s: float,
    *,
    is_gold: bool = False,
    env: Mapping[str, str] | None = None,
    cwd: str = ".",
) -> Probe:
    """Runs a program, given as text, beside the candidate or, if `is_gold`, beside the gold solution.

    Raises SandboxError.
    """
    # The agent can leave .pyc files in its workspace that do not match their sources, so none is read there:
    # `starting.py` sees to it for imports, and `pycache_prefix`, which names a folder that does not exist,
    # for everything else. The interpreter's own are read, as far as a program imports modules before it
    # sets the prefix. `-I` keeps the environment and user site of the agent out.
    nonce = secrets.token_hex(16)
    prefix = None if is_gold else f"/nonexistent/{nonce}"
    sent = json.dumps({**job, "nonce": nonce, "pycache_prefix": prefix}).encode()
    command = bytecode.command(program)
    result = await sandbox.exec(command, stdin=sent, timeout_s=timeout_s, env=env, cwd=cwd)
    lines = []
    foreign = 0
    for line in result.stdout.splitlines():
        record = _parse_line(line, nonce)
        if record is None:
            foreign += 1
        else:
            lines.append(record)
    return Probe(tuple(lines), foreign, result)


def _parse_line(line: bytes, nonce: str) -> Mapping[str, Any] | None:
    start, _, rest = line.partition(b" ")
    if start != nonce.encode():
        return None
    try:
        parsed = parse_json(bytes.fromhex(rest.decode()))
    except ValueError:
        return None
    return parsed[0] if parsed is not None and isinstance(parsed[0], dict) else None


def program(name: str) -> str:
    """The text of a program in `runners/`."""
    return (files("harnessgym.grading.runners") / f"{name}.py").read_text()


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

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        verdict = "unknown" if self.why else "failed" if self.failed else "passed"
        fields: dict[str, Any] = {
            "verdict": verdict,
            "passed": self.passed,
            "failed": list(self.failed[:_SHOWN]),
        }
        return {**fields, "why": self.why} if self.why else fields


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
    open_sandbox: Opener,
    open_gold: Opener,
    job: Mapping[str, Any],
    timeout_s: float,
) -> SuiteResult:
    """Runs the tests again on the gold solution, then on the candidate.

    `first` is an earlier run on the gold solution. Raises SandboxError when a sandbox failed.
    """
    # Two runs on gold: a flaky test must not count against the candidate.
    async with open_gold() as sandbox:
        again = await probe(sandbox, program("tracing"), job, timeout_s, is_gold=True)
    if not (first.ended and again.ended):
        return SuiteResult(0, (), "the developers' tests do not come to an end on the gold solution")
    wanted = _passed(first) & _passed(again)
    if not wanted:
        return SuiteResult(0, (), "none of the developers' tests passes on the gold solution")
    async with open_sandbox() as sandbox:
        await _lay_tests(gold, candidate, sandbox)
        candidate_probe = await probe(sandbox, program("tracing"), job, timeout_s)
    if candidate_probe.forged:
        return SuiteResult(0, (), "the results hold lines that the runner did not write")
    if not candidate_probe.began:
        return SuiteResult(0, (), "the runner did not start beside the candidate")
    passed = _passed(candidate_probe) & wanted
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
    test_files = [file for file in python_files(folder) if is_test(file)]
    return [*test_files, *(name for name in _CONFIGURATION if (folder / name).is_file())]


KEY = "second_opinion"
"""Key of the opinion in a grade's evidence."""


Kind = Literal["result", "exception", "arguments", "output", "crash", "hang", "import"]
"""How two versions differ: in what they return, raise, change in their arguments, or print; or the candidate
crashes, hangs, or cannot be imported."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One input on which the candidate and the gold solution differ."""

    function: str
    kind: Kind
    arguments: str = ""
    gold: str = ""
    candidate: str = ""

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        fields = {"function": self.function, "kind": self.kind, "arguments": self.arguments}
        return {**fields, "gold": self.gold, "candidate": self.candidate}


@dataclass(frozen=True, slots=True)
class Opinion:
    """Whether a candidate behaves as the gold solution does on the inputs that were tried."""

    agrees: bool | None
    """None if there is no opinion; `why` says why."""
    why: str = ""
    differs: tuple[Difference, ...] = ()
    inputs: int = 0
    """Calls whose outcomes were compared."""
    functions: tuple[str, ...] = ()
    """The functions that were called."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Functions and modules that were not compared, with the reason."""
    suite: SuiteResult | None = None
    """Result of the developers' own tests; None if the workspace has none."""

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        fields: dict[str, Any] = {
            "agrees": self.agrees,
            "differs": [difference.to_dict() for difference in self.differs[:_SHOWN]],
            "differences": len(self.differs),
            "inputs": self.inputs,
            "functions": list(self.functions),
            "left_out": dict(self.left_out),
            "suite": None if self.suite is None else self.suite.to_dict(),
        }
        return {**fields, "why": self.why} if self.why else fields


def with_opinion(grade: Grade, opinion: Opinion) -> Grade:
    """The same grade with the opinion among its evidence."""
    return replace(grade, evidence={**grade.evidence, KEY: opinion.to_dict()})
