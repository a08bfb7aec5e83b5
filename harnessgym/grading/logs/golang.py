"""`go test -v`: `--- PASS: TestA/sub (0.00s)`, indented for subtests."""

import re

from harnessgym.grading.log import LogStatus, Statuses, by_line

_LINE = re.compile(r"--- (?P<word>PASS|FAIL|SKIP): (?P<name>.+) \(.+\)$")
_WORDS = {"PASS": LogStatus.PASSED, "FAIL": LogStatus.FAILED, "SKIP": LogStatus.SKIPPED}


def gotest(log: str) -> Statuses:
    """Subtests are tests of their own."""
    return by_line(log, _LINE, _WORDS)
