"""Jest: `--verbose` trees, `--json` put into lines, and lines for each file."""

import re

from harnessgym.grading.log import LogStatus, Statuses, by_line

_VERBOSE = re.compile(r"(?P<word>[✓✕○])\s(?P<name>.+?)(?:\s\(\d+\s*m?s\))?$")
_SIGNS = {"✓": LogStatus.PASSED, "✕": LogStatus.FAILED, "○": LogStatus.SKIPPED}
_TRANSFORMED = re.compile(r"\[(?P<word>PASSED|FAILED)\]\s(?P<name>.+)$")
_FILES = re.compile(r"(?P<word>PASS|FAIL)\s(?P<name>.*?)(?:\s\([\d.]+(?:ms|\ss|s)\))?$")
_WORDS = {
    "PASSED": LogStatus.PASSED,
    "FAILED": LogStatus.FAILED,
    "PASS": LogStatus.PASSED,
    "FAIL": LogStatus.FAILED,
}


def verbose(log: str) -> Statuses:
    """`✓ name (3 ms)`. Tests with one name in different groups count as one."""
    return by_line(log, _VERBOSE, _SIGNS)


def transformed(log: str) -> Statuses:
    """`[PASSED] group test`."""
    return by_line(log, _TRANSFORMED, _WORDS)


def files(log: str) -> Statuses:
    """`PASS path (1.2 s)`."""
    return by_line(log, _FILES, _WORDS)
