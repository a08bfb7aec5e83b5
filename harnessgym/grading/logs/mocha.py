"""Mocha's reporters, and others that number failures."""

import re

from harnessgym.grading.log import LogStatus, Statuses, lines_of

_DURATION = re.compile(r"\s*(?:\(\s*)?\d+(?:\.\d+)?\s*(?:ms|s)\s*\)?\s*$", re.IGNORECASE)
_PASSED = re.compile(r"✔\s+(.*)$")
_SKIPPED = re.compile(r"-\s+(.*)$")
_NUMBERED = re.compile(r"\d+\)\s+(.*)$")
_HEADED = re.compile(r"\d+\)\s+(.*):$")
_FLAGGED = re.compile(r"\[W\]\s*\d+\)\s+(.*)$")
_AT_START = re.compile(r"\d+\)\s(.*)")
_BLOCK = re.compile(r"  \d+\)(.*)$")


def spec(log: str) -> Statuses:
    """`✔ name`, `1) name`, `- name`. A pass never replaces a failure."""
    return _first_match(
        log, {_SKIPPED: LogStatus.SKIPPED, _NUMBERED: LogStatus.FAILED, _PASSED: LogStatus.PASSED}
    )


def marked_failures(log: str) -> Statuses:
    """`✔ name`, `[W] 1) name` or `1) name:`, `- name`."""
    found = {
        _SKIPPED: LogStatus.SKIPPED,
        _HEADED: LogStatus.FAILED,
        _FLAGGED: LogStatus.FAILED,
        _PASSED: LogStatus.PASSED,
    }
    return _first_match(log, found)


def numbered(log: str) -> Statuses:
    """`1) name` at the start of a line: failures only, as Jasmine prints them."""
    matches = (_AT_START.match(line) for line in lines_of(log))
    return {match[1].strip(): LogStatus.FAILED for match in matches if match is not None}


def minimal(log: str) -> Statuses:
    """`  1) group` and the lines below it, up to one with an `Error`: failures only.

    Runs of white space become one space.
    """
    found: Statuses = {}
    name: list[str] | None = None
    for line in lines_of(log):
        if match := _BLOCK.match(line):
            name = [match[1]]
        elif name is not None and "Error" in line:
            found[" ".join(" ".join(name).split())], name = LogStatus.FAILED, None
        elif name is not None:
            name.append(line)
    return found


def _first_match(log: str, patterns: dict[re.Pattern[str], LogStatus]) -> Statuses:
    found: Statuses = {}
    for line in map(str.strip, lines_of(log)):
        match, status = next(
            ((match, status) for pattern, status in patterns.items() if (match := pattern.match(line))),
            (None, None),
        )
        if match is None or status is None or not (name := _DURATION.sub("", match[1]).strip()):
            continue
        if status is not LogStatus.PASSED or name not in found:
            found[name] = status
    return found
