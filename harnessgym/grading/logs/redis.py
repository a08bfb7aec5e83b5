"""The Tcl suite of Redis: `[ok]: name (12 ms)`, `[err]: name in tests/unit/x.tcl`."""

import re

from harnessgym.grading.log import LogStatus, Statuses, lines_of

_LINE = re.compile(r"\[(ok|err|skip|ignore)\]:\s(.+?)(?:\s\(\d+\s*m?s\))?$")
_PLACE = re.compile(r"\s+in\s+\S+$")
_WORDS = {
    "ok": LogStatus.PASSED,
    "err": LogStatus.FAILED,
    "skip": LogStatus.SKIPPED,
    "ignore": LogStatus.SKIPPED,
}


def redis(log: str) -> Statuses:
    """The file of a failure is not part of its name."""
    found: Statuses = {}
    for line in lines_of(log):
        if match := _LINE.match(line.strip()):
            found[_PLACE.sub("", match[2]) if match[1] == "err" else match[2]] = _WORDS[match[1]]
    return found
