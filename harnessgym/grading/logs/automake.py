"""`make check` of automake, `PASS: name`, and MicroPython's runner, which is alike: `pass  name`."""

import re

from harnessgym.grading.log import LogStatus, Statuses, by_line

_LINE = re.compile(r"(?P<word>PASS|FAIL):\s(?P<name>.+)$")
_WORDS = {"PASS": LogStatus.PASSED, "FAIL": LogStatus.FAILED}
_MICRO = re.compile(r"(?P<word>pass|FAIL|skip)\s+(?P<name>.+)$")
_MICRO_WORDS = {"pass": LogStatus.PASSED, "FAIL": LogStatus.FAILED, "skip": LogStatus.SKIPPED}


def automake(log: str) -> Statuses:
    """Other results (SKIP, XFAIL) are not told."""
    return by_line(log, _LINE, _WORDS)


def micropython(log: str) -> Statuses:
    """`run-tests.py`."""
    return by_line(log, _MICRO, _MICRO_WORDS)
