"""Ant's JUnit task with a printing listener: `[junit] [PASS] name`."""

import re

from harnessgym.grading.log import Statuses, TestStatus, by_line

_LINE = re.compile(r"\[junit\]\s+\[(?P<word>PASS|FAIL|ERR)\]\s+(?P<name>.*)$")
_WORDS = {"PASS": TestStatus.PASSED, "FAIL": TestStatus.FAILED, "ERR": TestStatus.FAILED}


def ant(log: str) -> Statuses:
    """Errors are failures."""
    return by_line(log, _LINE, _WORDS)
