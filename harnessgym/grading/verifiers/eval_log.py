"""Reads the log of an evaluation script: each test's status, the exit code, and whether the tests ran at all.

Not every log is a result. A log that reports no test counts only with evidence that a suite ran. A log that
reports no failure although the tests' command failed describes a different run (somebody printed `PASSED`
lines), or one that broke off. Failures of the environment are told apart from failures of a patch by what
stands in the log before the tests begin. The code under test can have printed what stands after that: if it
counted, a patch that fails could turn its failure into an error and no verdict.

`instrumented` appends a nonce to the markers of a script. So code under test cannot end the log, or set an
exit code, by printing a marker. Code that reads the processes above it can find the nonce.
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
"""Runners' summaries with a count above 0: Karma, Mocha, Jest, TAP, Jasmine, OpenLayers."""

Cause = Literal["environment", "ambiguous"]
"""environment: something around the tests failed, and the run says nothing about the patch. ambiguous: the
patch may be the cause."""
_SIGNATURES: tuple[tuple[str, Cause, str], ...] = (
    ("a browser did not start", "environment", r"Failed to launch|Failed to connect to the bus"),
    ("there is no display", "environment", r"cannot open display|Missing X server|unable to open X display"),
    ("out of memory", "environment", r"Cannot allocate memory|OutOfMemoryError|^Killed$"),
    (
        "the container engine does not answer",
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
    """The content of a log."""

    statuses: Statuses = field(default_factory=dict)
    problem: str = ""
    """Why the log is no result, if it is none. Then there are no statuses."""
    contradicted: bool = False
    """Whether the log is no result because the tests' command failed while every reported test passed."""
    cause: Cause | None = None
    """The likely cause if the log is no result; None if unknown."""
    exit_code: int | None = None
    """The tests' own exit code, if the script prints it."""


def read_log(log: str, parser: Parser, nonce: str = "", *, exit_code_decides: bool = True) -> Reading:
    """Reads a log. With a nonce, only markers followed by it count. `parser` must not raise.

    Unless `exit_code_decides`, the log is a result even if the command failed and no test did.
    """
    exit_code = _exit_code(log, nonce)
    start, end = _marker(START, nonce), _marker(END, nonce)

    def no_result(problem: str) -> Reading:
        name, cause = diagnosis(log, start) or ("", None)
        return Reading({}, f"{problem} ({name})" if name else problem, cause=cause, exit_code=exit_code)

    bad_marker = next((marker for marker in _BAD if marker in log), None) if not nonce else None
    if bad_marker is not None:
        return no_result(f"the log says `{bad_marker.removeprefix('>>>>> ')}`")
    if start not in log or end not in log:
        return no_result("the tests' output has no beginning or no end")
    # Some runners write outside of the markers, so the whole log is the second try.
    statuses = parser(log.split(start)[1].split(end, maxsplit=1)[0]) or parser(log)
    if not statuses and not _RAN.search(log):
        return no_result("no test reported anything")
    return (
        _checked(statuses, exit_code, no_result)
        if exit_code_decides
        else Reading(statuses, exit_code=exit_code)
    )


def _checked(statuses: Statuses, exit_code: int | None, no_result: Callable[[str], Reading]) -> Reading:
    """The statuses, unless the exit code contradicts them."""
    failed = any(status in (LogStatus.FAILED, LogStatus.ERROR) for status in statuses.values())
    if exit_code not in (None, 0) and not failed:
        reading = no_result(
            f"the tests' command ended with exit code {exit_code}, and no test is reported to have failed"
        )
        return replace(reading, contradicted=bool(statuses))
    return Reading(statuses, exit_code=exit_code)


def diagnosis(log: str, start: str = START) -> tuple[str, Cause] | None:
    """The first known problem in a log without a result: its name, and whether a patch can have caused it.

    `start` marks the beginning of the tests' output.
    """
    before = log.partition(start)[0]
    for name, cause, sign in _SIGNATURES:
        if re.search(sign, log, re.MULTILINE):
            theirs = re.search(sign, before, re.MULTILINE) is None
            return name, "ambiguous" if theirs else cause
    return None


def instrumented(script: str, nonce: str = "") -> str:
    """The script with the nonce in its markers, and a line that prints the tests' exit code at their end.

    A script without an end marker is returned unchanged.
    """
    # The last markers count: earlier lines may mention them, in a comment or in a file that the script
    # writes. `$?` is stored before the line of the end marker, which would overwrite it.
    lines = script.split("\n")
    end = max((number for number, line in enumerate(lines) if END in line), default=-1)
    start = max((number for number, line in enumerate(lines[: max(end, 0)]) if START in line), default=-1)
    if end < 0:
        return script
    exit_code_command = _echo_command(_marker(EXIT_CODE, nonce), f'": ${_VARIABLE}"')
    lines[end] = "\n".join(
        [
            f"{_VARIABLE}=$?",
            lines[end],
            *([_echo_command(_marker(END, nonce))] * bool(nonce)),
            exit_code_command,
        ]
    )
    if nonce and start >= 0:
        lines[start] += f"\n{_echo_command(_marker(START, nonce))}"
    return "\n".join(lines)


def _marker(text: str, nonce: str) -> str:
    return f"{text} {nonce}" if nonce else text


def _echo_command(marker: str, more: str = "") -> str:
    """A command that prints the marker.

    It splits the marker in two, so that a script under `set -x` does not print it with its commands.
    """
    return rf"printf '%s%s\n' '{marker[:3]}' '{marker[3:]}'{more}"


def _exit_code(log: str, nonce: str) -> int | None:
    match = re.search(rf"^{re.escape(_marker(EXIT_CODE, nonce))}:\s*(-?\d{{1,9}})", log, re.MULTILINE)
    return int(match[1]) if match else None
