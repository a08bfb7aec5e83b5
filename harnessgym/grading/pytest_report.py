"""Parses the report of a pytest run, and checks that an honest run could have written it: ids, phases,
canaries and exit codes must agree.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from harnessgym.grading.canaries import Canaries
from harnessgym.grading.outcome import CheckOutcome

_PHASES = ("setup", "call", "teardown")
_FAILED = "1"
"""Exit code of pytest when tests failed. The canaries that must fail make it the only honest one."""


@dataclass(slots=True)
class PytestReport:
    """The lines that one run wrote, sorted."""

    relayed: str = ""
    """hidden: the process that signs the lines denied others its memory and descriptors. open: not."""
    began: bool = False
    ended: str | None = None
    collected: list[str] = field(default_factory=list)
    uncollected: list[str] = field(default_factory=list)
    """Files that could not be imported, with why."""
    phases: list[tuple[str, str, str]] = field(default_factory=list)
    """Test id, phase, outcome."""
    reasons: dict[str, str] = field(default_factory=dict)
    foreign: int = 0
    """Lines that the runner did not write."""

    @classmethod
    def parse(cls, output: bytes, nonce: str) -> "PytestReport":
        """Parses what the runner wrote to its private descriptor."""
        report = cls()
        for line in output.splitlines():
            words = _words(line, nonce)
            if words is None or not report._take(words):
                report.foreign += 1
        return report

    def _take(self, words: Sequence[str]) -> bool:
        match words:
            case ["relayed", state]:
                fresh = not self.relayed and not self.began
                self.relayed = state
                return fresh
            case ["began", _]:
                fresh = not self.began
                self.began = True
                return fresh
            case ["ended", code]:
                fresh = self.ended is None
                self.ended = code
                return fresh
            case ["collected", test]:
                self.collected.append(test)
            case ["uncollected", outcome, path, why]:
                self.uncollected.append(f"{path} ({outcome}): {why[-300:]}")
            case ["phase", test, when, outcome, why]:
                self.phases.append((test, when, outcome))
                if outcome != "passed":
                    self.reasons.setdefault(test, f"{outcome} in {when}: {why[-300:]}")
            case _:
                return False
        return self.ended is None

    @property
    def passed(self) -> frozenset[str]:
        """Tests whose three phases passed. Skipped and expected failures are no pass."""
        by_test: dict[str, list[tuple[str, str]]] = {}
        for test, when, outcome in self.phases:
            by_test.setdefault(test, []).append((when, outcome))
        wanted = [(when, "passed") for when in _PHASES]
        return frozenset(test for test, phases in by_test.items() if phases == wanted)


def count(
    report: PytestReport, expected: Sequence[str], canaries: Canaries, exit_code: int | None
) -> CheckOutcome:
    """Passed if every expected test passed and the report is one that an honest run could have written."""
    impossible = _impossible(report, expected, canaries, exit_code)
    passed = report.passed & set(expected)
    facts = {"tests_passed": len(passed), "expected": len(expected), "relayed": report.relayed}
    if impossible:
        return CheckOutcome(False, impossible, impossible, facts=facts)
    missing = [test for test in expected if test not in passed]
    lines = [
        f"{len(passed)} of {len(expected)} tests",
        *(f"{test}: {report.reasons.get(test, 'not run')}" for test in missing[:3]),
    ]
    return CheckOutcome(not missing, "\n".join([*lines, *report.uncollected[:2]]), facts=facts)


def _impossible(
    report: PytestReport, expected: Sequence[str], canaries: Canaries, exit_code: int | None
) -> str | None:
    """The first contradiction, which no honest run could have reported; None if there is none."""
    good, bad = canaries.good, canaries.bad
    known = {*expected, *good, *bad}
    # Code under test that is wrong can make tests fail that must pass. It gains nothing by that.
    solved = report.passed >= set(expected)
    seen = Counter(report.collected)
    phases = Counter((test, when) for test, when, _ in report.phases)
    checks: Mapping[str, object] = {
        "The results hold lines that the runner did not write": report.foreign,
        "Tests were collected twice": [test for test, times in seen.items() if times > 1],
        "Phases of tests were reported twice": [test for (test, _), times in phases.items() if times > 1],
        "Tests were collected that the task does not have": sorted(set(seen) - known),
        "Tests were reported that were not collected": sorted({test for test, _ in phases} - set(seen)),
        "Tests that must fail passed": sorted(bad & report.passed),
        "Tests that must pass did not": sorted(good - report.passed) if solved else [],
        "Tests are missing, though every file was collected": []
        if report.uncollected
        else sorted(known - set(seen)),
        "The process exited with 0 before the runner finished": report.ended is None and exit_code == 0,
        "pytest's exit code is not what its results mean": report.ended not in (None, _FAILED),
        "The exit code is not the one that was reported": report.ended is not None
        and str(exit_code) != report.ended,
    }
    problem = next((text for text, evidence in checks.items() if evidence), None)
    if problem is None:
        return None
    evidence = checks[problem]
    return f"{problem}: {', '.join(evidence[:3])}." if isinstance(evidence, list) else f"{problem}."


def _words(line: bytes, nonce: str) -> list[str] | None:
    start, *rest = line.split(b" ")
    if start != nonce.encode():
        return None
    try:
        return [bytes.fromhex(word.decode()).decode() for word in rest]
    except ValueError:
        return None
