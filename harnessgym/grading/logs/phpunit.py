"""PHPUnit with `--testdox`: a class, `Name (Full.Name)`, and its tests below it."""

import re

from harnessgym.grading.log import LogStatus, Statuses, lines_of

_CLASS = re.compile(r"(\w.+) \(.+\)$")
_TEST = re.compile(r"\s*([✔✘↩])\s*(.*)$")
_SIGNS = {"✔": LogStatus.PASSED, "✘": LogStatus.FAILED, "↩": LogStatus.SKIPPED}


def testdox(log: str) -> Statuses:
    """`Class > test`."""
    found: Statuses = {}
    suite: str | None = None
    for line in lines_of(log):
        if match := _CLASS.match(line):
            suite = match[1]
        elif match := _TEST.match(line):
            found[f"{suite} > {match[2]}"] = _SIGNS[match[1]]
    return found
