"""Ruby's runners: Minitest, test-unit, Cucumber, and RSpec's JSON put into lines."""

import re

from harnessgym.grading.log import LogStatus, Statuses, by_line, lines_of

_MINITEST = re.compile(r"(?P<name>.+?) = \d+\.\d+ s = (?P<word>[.FES])$")
_SIGNS = {".": LogStatus.PASSED, "F": LogStatus.FAILED, "E": LogStatus.FAILED, "S": LogStatus.SKIPPED}
_CUCUMBER = re.compile(r"(?P<name>.*) \.+(?P<word>[.F])")
_TEST_UNIT = re.compile(r"(?:test: )?(?P<name>.+):\s+(?P<word>\.|E\b|F\b|O\b)")
_LETTERS = {".": LogStatus.PASSED, "E": LogStatus.FAILED, "F": LogStatus.FAILED, "O": LogStatus.SKIPPED}
_RSPEC = re.compile(r"(?P<name>.+) - (?P<word>passed|failed)")
_OUTCOMES = {"passed": LogStatus.PASSED, "failed": LogStatus.FAILED}
_WORDED = re.compile(
    r"\s*(?P<name>test[^A-Z]+?)\s+(?P<word>PASS|PASSED|FAIL|FAILURE|ERROR|SKIP|SKIPPED)\b"
    r"(?:\s*\([0-9.]+s\))?$"
)
_WORDS = {
    "PASS": LogStatus.PASSED, "PASSED": LogStatus.PASSED, "FAIL": LogStatus.FAILED,
    "FAILURE": LogStatus.FAILED,
    "ERROR": LogStatus.ERROR, "SKIP": LogStatus.SKIPPED, "SKIPPED": LogStatus.SKIPPED,
}  # fmt: skip
_SUITE = re.compile(r"[A-Z]\w*$")
_WORSE = (LogStatus.FAILED, LogStatus.ERROR)


def minitest(log: str) -> Statuses:
    """`-v`: `name = 0.01 s = .`. A name ends at its last full stop before a space or the sign, if any."""
    statuses = by_line(log, _MINITEST, _SIGNS)
    return {f"{name} ".rpartition(". ")[0] or name: status for name, status in statuses.items()}


def minitest_words(log: str) -> Statuses:
    """A class on a line, and `  test_a  PASS (0.02s)` below it: `Class::test_a`. The worst report wins."""
    statuses: Statuses = {}
    suite = ""
    for line in map(str.rstrip, lines_of(log)):
        if _SUITE.match(line):
            suite = f"{line}::"
        elif match := _WORDED.match(line):
            name = suite + match["name"]
            status = _WORDS[match["word"]]
            ranked = [*_WORSE].index(status) if status in _WORSE else -1
            before = statuses.get(name)
            if before is None or ranked > ([*_WORSE].index(before) if before in _WORSE else -1):
                statuses[name] = status
    return statuses


def cucumber(log: str) -> Statuses:
    """`--format progress` with names: `scenario ....F`. The last sign is the result."""
    return by_line(log, _CUCUMBER, _SIGNS)


def test_unit(log: str) -> Statuses:
    """`test: name: .: (0.1)`."""
    return by_line(log, _TEST_UNIT, _LETTERS)


def rspec(log: str) -> Statuses:
    """`group name - passed`. Pending examples are left out."""
    return by_line(log, _RSPEC, _OUTCOMES)
