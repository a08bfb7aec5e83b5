"""Gradle with test logging: `Class > method PASSED`. Other output may separate the name from the status."""

import re

from harnessgym.grading.log import LogStatus, Statuses, lines_of

_LINE = re.compile(r"(?P<name>[^>].+?)\s+(?P<word>PASSED|FAILED)(?:\s+\(\d+(?:\.\d+)?s\))?$")
_NAME = re.compile(r"[^>]\S*\s+>\s+\S+$")
_WORDS = {"PASSED": LogStatus.PASSED, "FAILED": LogStatus.FAILED}


def gradle(log: str) -> Statuses:
    """Parses the log. Skipped tests are left out.

    A status alone on a line belongs to the last name that was alone on a line.
    """
    found: Statuses = {}
    waiting = None
    for line in map(str.strip, lines_of(log)):
        if match := _LINE.match(line):
            found[match["name"]], waiting = _WORDS[match["word"]], None
        elif _NAME.match(line):
            waiting = line
        elif waiting is not None and line in _WORDS:
            found[waiting], waiting = _WORDS[line], None
    return found
