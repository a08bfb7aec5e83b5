"""CTest: `1/3 Test #1: name .....   Passed    0.01 sec`."""

import re

from harnessgym.grading.log import LogStatus, Statuses, by_line

_LINE = re.compile(
    r"\d+/\d+ Test\s+#\d+: (?P<name>.+?) (?:\.+ *)(?P<word>Passed|\*\*\*[A-Z][A-Za-z ]*?)\s*(?:\d+\.\d+ sec.*)?$"
)
_WORDS = {"Passed": LogStatus.PASSED, "***Skipped": LogStatus.SKIPPED, "***Not Run": LogStatus.SKIPPED, "***Failed": LogStatus.FAILED,
          "***Timeout": LogStatus.FAILED, "***Exception": LogStatus.ERROR}  # fmt: skip


def ctest(log: str) -> Statuses:
    """Names may hold spaces."""
    return by_line(log, _LINE, _WORDS)
