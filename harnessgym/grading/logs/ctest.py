"""CTest: `1/3 Test #1: name .....   Passed    0.01 sec`."""

import re

from harnessgym.grading.log import Statuses, TestStatus, by_line

_LINE = re.compile(
    r"\d+/\d+ Test\s+#\d+: (?P<name>.+?) (?:\.+ *)(?P<word>Passed|\*\*\*[A-Z][A-Za-z ]*?)\s*(?:\d+\.\d+ sec.*)?$"
)
_WORDS = {"Passed": TestStatus.PASSED, "***Skipped": TestStatus.SKIPPED, "***Not Run": TestStatus.SKIPPED, "***Failed": TestStatus.FAILED,
          "***Timeout": TestStatus.FAILED, "***Exception": TestStatus.ERROR}  # fmt: skip


def ctest(log: str) -> Statuses:
    """Names may hold spaces."""
    return by_line(log, _LINE, _WORDS)
