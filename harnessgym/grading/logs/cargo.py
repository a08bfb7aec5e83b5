"""`cargo test`: `test module::name ... ok`. Ignored tests are not told."""

import re

from harnessgym.grading.log import LogStatus, Statuses, by_line

_LINE = re.compile(r"test\s+(?P<name>\S+)\s+\.\.\.\s+(?P<word>\w+)$")
_WORDS = {"ok": LogStatus.PASSED, "FAILED": LogStatus.FAILED}


def cargo(log: str) -> Statuses:
    """Without doc tests, whose names hold spaces."""
    return by_line(log, _LINE, _WORDS)
