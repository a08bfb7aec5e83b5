"""Ant's JUnit task with a printing listener: `[junit] [PASS] name`."""

import re

from harnessgym.grading.log import LogStatus, Statuses, by_line

_LINE = re.compile(r"\[junit\]\s+\[(?P<word>PASS|FAIL|ERR)\]\s+(?P<name>.*)$")
_WORDS = {"PASS": LogStatus.PASSED, "FAIL": LogStatus.FAILED, "ERR": LogStatus.FAILED}


def ant(log: str) -> Statuses:
    """Errors are failures."""
    return by_line(log, _LINE, _WORDS)
