"""Vitest with `--reporter=verbose`."""

import re

from harnessgym.grading.log import LogStatus, Statuses, by_line

_LINE = re.compile(r"(?P<word>[✓×↓])\s(?P<name>.+?)(?:\s(?:\d+\s*m?s?|\[skipped\]))?$")  # noqa: RUF001
_SIGNS = {"✓": LogStatus.PASSED, "×": LogStatus.FAILED, "↓": LogStatus.SKIPPED}  # noqa: RUF001


def vitest(log: str) -> Statuses:
    """A number at the end is a duration."""
    return by_line(log, _LINE, _SIGNS)
