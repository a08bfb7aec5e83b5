"""What an evaluation script printed: where the tests' output begins and ends, how they ended, and whether
they ran at all.

A log without a result is not a result: an empty one counts only with evidence that a suite ran, and one that
reports no failure although the tests' command failed describes another run (somebody printed `PASSED` lines),
or one that broke off. What broke around the tests is told from what a patch broke, so that a browser that
does not start is no reward of zero.

`instrumented` puts a nonce behind the markers of a script, so that code under test cannot end the log, or
name an exit code, by printing a marker. It is no secret from code that reads the processes above it.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

from harnessgym.grading.log import LogStatus, Parser, Statuses

START = ">>>>> Start Test Output"
END = ">>>>> End Test Output"
EXIT_CODE = ">>>>> Test Exit Code"
_BAD = (">>>>> Patch Apply Failed", ">>>>> Reset Failed", ">>>>> Tests Errored", ">>>>> Tests Timed Out")
_VARIABLE = "HARNESSGYM_TEST_EXIT_CODE"
_RAN = re.compile(
    r"Executed [1-9]\d* of \d+|TOTAL: [1-9]\d* (?:SUCCESS|FAILED)|[1-9]\d* passing|Tests:\s+[1-9]\d*"
    r"|Test Suites:\s+(?:\d+ \w+, )*[1-9]\d* total|^# tests [1-9]\d*|[1-9]\d* specs?, \d+ failures?|': ok$",
    re.MULTILINE,
)
"""Summaries of runners with a count that is not 0: Karma, Mocha, Jest, TAP, Jasmine, OpenLayers."""

Cause = Literal["environment", "ambiguous"]
"""environment: what is around the tests broke, and the run says nothing of a patch. ambiguous: a patch may
have done it."""
_USED_UP = frozenset({"out of memory", "the disk is full"})
"""What tests can do too: the environment's fault only where it is told before they began."""
_SIGNATURES: tuple[tuple[str, Cause, str], ...] = (
    ("a browser did not start", "environment", r"Failed to launch|Failed to connect to the bus"),
    ("there is no display", "environment", r"cannot open display|Missing X server|unable to open X display"),
    ("out of memory", "environment", r"Cannot allocate memory|OutOfMemoryError|^Killed$"),
    (
        "the container engine is away",
        "environment",
        r"Error response from daemon|Cannot connect to the Docker daemon",
    ),
    (
        "names cannot be resolved",
        "environment",
        r"Could not resolve host|Temporary failure in name resolution",
    ),
    ("the disk is full", "environment", r"No space left on device"),
    ("a module is missing", "ambiguous", r"Cannot find module|MODULE_NOT_FOUND|ModuleNotFoundError"),
    ("no test was collected", "ambiguous", r"no tests ran|collected 0 items"),
    ("the tests did not end", "ambiguous", r"Timeout error: \d+ seconds exceeded"),
)


@dataclass(frozen=True, slots=True)
class Reading:
    """What a log says."""

    statuses: Statuses = field(default_factory=dict)
    problem: str = ""
    """Why it is no result, if it is none; then there are no statuses."""
    contradicted: bool = False
    """Whether it is none because tests are reported, none of them to have failed, and the tests' command
    failed."""
    cause: Cause | None = None
    """What a log without a result points to, if it points anywhere."""
    exit_code: int | None = None
    """The tests' own, where the script tells it."""


def read_log(log: str, parser: Parser, nonce: str = "", *, exit_code_decides: bool = True) -> Reading:
    """Reads a log; with a nonce, markers count only with it behind them. Parsers may raise nothing.

    Unless `exit_code_decides`, a command that failed without a failure in the log is a result all the same.
    """
    exit_code = _exit_code(log, nonce)
    start, end = _marker(START, nonce), _marker(END, nonce)

    def no_result(problem: str) -> Reading:
        name, cause = diagnosis(log, start) or ("", None)
        return Reading({}, f"{problem} ({name})" if name else problem, cause=cause, exit_code=exit_code)

    said = next((marker for marker in _BAD if marker in log), None) if not nonce else None
    if said is not None:
        return no_result(f"the log says `{said.removeprefix('>>>>> ')}`")
    if start not in log or end not in log:
        return no_result("the tests' output has no beginning or no end")
    statuses = parser(log.split(start)[1].split(end, maxsplit=1)[0]) or parser(
        log
    )  # some runners write past the markers
    if not statuses and not _RAN.search(log):
        return no_result("no test reported anything")
    return (
        _checked(statuses, exit_code, no_result)
        if exit_code_decides
        else Reading(statuses, exit_code=exit_code)
    )


def _checked(statuses: Statuses, exit_code: int | None, no_result: Callable[[str], Reading]) -> Reading:
    """The statuses, unless the exit code says that they are of another run."""
    failed = any(status in (LogStatus.FAILED, LogStatus.ERROR) for status in statuses.values())
    if exit_code not in (None, 0) and not failed:
        found = no_result(
            f"the tests' command ended with exit code {exit_code}, and no test is reported to have failed"
        )
        return replace(found, contradicted=bool(statuses))
    return Reading(statuses, exit_code=exit_code)


def diagnosis(log: str, start: str = START) -> tuple[str, Cause] | None:
    """The first sign of trouble in a log that has no result: what, and whether a patch can be behind it.

    `start` is what marks the beginning of the tests' output.
    """
    before = log.partition(start)[0]
    for name, cause, sign in _SIGNATURES:
        if re.search(sign, log, re.MULTILINE):
            theirs = name in _USED_UP and re.search(sign, before, re.MULTILINE) is None
            return name, "ambiguous" if theirs else cause
    return None


def instrumented(script: str, nonce: str = "") -> str:
    """The script with the tests' own exit code told behind the end of their output, and markers with the
    nonce.

    A script that marks no end comes back as it is.
    """
    lines = script.split("\n")
    end = max((number for number, line in enumerate(lines) if END in line), default=-1)
    start = max((number for number, line in enumerate(lines[: max(end, 0)]) if START in line), default=-1)
    if end < 0:
        return script
    told = _said(_marker(EXIT_CODE, nonce), f'": ${_VARIABLE}"')
    lines[end] = "\n".join(
        [f"{_VARIABLE}=$?", lines[end], *([_said(_marker(END, nonce))] * bool(nonce)), told]
    )
    if nonce and start >= 0:
        lines[start] += f"\n{_said(_marker(START, nonce))}"
    return "\n".join(lines)


def _marker(text: str, nonce: str) -> str:
    return f"{text} {nonce}" if nonce else text


def _said(marker: str, more: str = "") -> str:
    """A command that prints it, so written that a script which prints its commands does not print the
    marker by that.
    """
    return rf"printf '%s%s\n' '{marker[:3]}' '{marker[3:]}'{more}"


def _exit_code(log: str, nonce: str) -> int | None:
    match = re.search(rf"^{re.escape(_marker(EXIT_CODE, nonce))}:\s*(-?\d{{1,9}})", log, re.MULTILINE)
    return int(match[1]) if match else None
