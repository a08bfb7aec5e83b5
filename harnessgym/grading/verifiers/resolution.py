"""Decides whether an issue is resolved: pure functions of the tests' statuses and the expected ones.

The rules are SWE-bench's (5.0.2):

- Every test that failed before (F2P) must pass. A skipped test does not count as a pass; an expected
  failure does.
- Every test that passed before (P2P) must still pass. A skipped test counts as a pass.
- An id that a dataset cut off inside its parameters stands for all tests that start with it, if they agree.
- If a runner reports only failures, every other test has passed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from harnessgym.grading.log import LogStatus

EvalType = Literal["pass_and_fail", "fail_only"]
_PASSING = frozenset({LogStatus.PASSED, LogStatus.XFAIL})


@dataclass(frozen=True, slots=True)
class Expectation:
    """What a task expects of its tests."""

    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...] = ()
    eval_type: EvalType = "pass_and_fail"
    """fail_only: the runner's output names only failures."""


@dataclass(frozen=True, slots=True)
class Resolution:
    """Which expected tests passed and which failed."""

    f2p_passed: tuple[str, ...]
    f2p_failed: tuple[str, ...]
    p2p_passed: tuple[str, ...]
    p2p_failed: tuple[str, ...]

    @property
    def f2p(self) -> float:
        """Fraction of F2P that passed; 1 if F2P is empty."""
        return _part(self.f2p_passed, self.f2p_failed)

    @property
    def p2p(self) -> float:
        """Fraction of P2P that still passes; 1 if P2P is empty."""
        return _part(self.p2p_passed, self.p2p_failed)

    @property
    def resolved(self) -> bool:
        """Whether all tests of both lists passed."""
        return not self.f2p_failed and not self.p2p_failed


def resolution(statuses: Mapping[str, LogStatus], expected: Expectation) -> Resolution:
    """Compares the tests' statuses with the expected ones."""
    f2p = [_fixed(test, statuses, expected.eval_type) for test in expected.fail_to_pass]
    p2p = [_kept(test, statuses, expected.eval_type) for test in expected.pass_to_pass]
    return Resolution(*_halves(expected.fail_to_pass, f2p), *_halves(expected.pass_to_pass, p2p))


def status_of(test: str, statuses: Mapping[str, LogStatus]) -> LogStatus | None:
    """The status of an expected test; None if it has none, or if the tests of a cut-off id disagree."""
    if test in statuses:
        return statuses[test]
    # An unclosed bracket is the sign of a cut-off id.
    if test.count("[") <= test.count("]"):
        return None
    meant = [status for other, status in statuses.items() if other.startswith(test)]
    return meant[0] if len({status in _PASSING for status in meant}) == 1 else None


def _fixed(test: str, statuses: Mapping[str, LogStatus], eval_type: EvalType) -> bool:
    if eval_type == "fail_only":
        return statuses.get(test) is not LogStatus.FAILED
    return status_of(test, statuses) in _PASSING


def _kept(test: str, statuses: Mapping[str, LogStatus], eval_type: EvalType) -> bool:
    return _fixed(test, statuses, eval_type) or status_of(test, statuses) is LogStatus.SKIPPED


def _halves(tests: Sequence[str], passed: Sequence[bool]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    pairs = list(zip(tests, passed, strict=True))
    return tuple(test for test, good in pairs if good), tuple(test for test, good in pairs if not good)


def _part(passed: Sequence[str], failed: Sequence[str]) -> float:
    return len(passed) / (len(passed) + len(failed)) if passed or failed else 1.0
