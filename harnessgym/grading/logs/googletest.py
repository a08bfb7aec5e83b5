"""GoogleTest: `[       OK ] Suite.Name (3 ms)`."""

import re

from harnessgym.grading.log import LogStatus, Statuses, by_line

_LINE = re.compile(r".*\[\s*(?P<word>OK|FAILED)\s*\]\s(?P<name>.*)\s\(.*\)$")
_WORDS = {"OK": LogStatus.PASSED, "FAILED": LogStatus.FAILED}


def googletest(log: str) -> Statuses:
    """Reports have a duration; the list of failures at the end has none. Skipped tests are not told."""
    return by_line(log, _LINE, _WORDS)
