"""Parsers for runners that report each test on a line of its own."""

import re
from collections.abc import Mapping

from harnessgym.grading.log import LogStatus, Parser, Statuses, by_line, lines_of

_PASSED = LogStatus.PASSED
_FAILED = LogStatus.FAILED
_SKIPPED = LogStatus.SKIPPED


def _parser(pattern: str, words: Mapping[str, LogStatus]) -> Parser:
    """A parser for lines that match `pattern`, whose groups `name` and `word` are the test and its status."""
    compiled = re.compile(pattern)
    return lambda log: by_line(log, compiled, words)


# `[junit] [PASS] name`: Ant's JUnit task with a printing listener.
ant = _parser(
    r"\[junit\]\s+\[(?P<word>PASS|FAIL|ERR)\]\s+(?P<name>.*)$",
    {"PASS": _PASSED, "FAIL": _FAILED, "ERR": _FAILED},
)
# `PASS: name`: `make check` of automake. Other results (SKIP, XFAIL) are left out.
automake = _parser(r"(?P<word>PASS|FAIL):\s(?P<name>.+)$", {"PASS": _PASSED, "FAIL": _FAILED})
# `pass  name`: MicroPython's `run-tests.py`.
micropython = _parser(
    r"(?P<word>pass|FAIL|skip)\s+(?P<name>.+)$", {"pass": _PASSED, "FAIL": _FAILED, "skip": _SKIPPED}
)
# `test module::name ... ok`. Ignored tests are left out, and so are doc tests, because their names have
# spaces.
cargo = _parser(r"test\s+(?P<name>\S+)\s+\.\.\.\s+(?P<word>\w+)$", {"ok": _PASSED, "FAILED": _FAILED})
# `1/3 Test #1: name .....   Passed    0.01 sec`. Names may hold spaces.
ctest = _parser(
    r"\d+/\d+ Test\s+#\d+: (?P<name>.+?) (?:\.+ *)(?P<word>Passed|\*\*\*[A-Z][A-Za-z "
    r"]*?)\s*(?:\d+\.\d+ sec.*)?$",
    {
        "Passed": _PASSED,
        "***Skipped": _SKIPPED,
        "***Not Run": _SKIPPED,
        "***Failed": _FAILED,
        "***Timeout": _FAILED,
        "***Exception": LogStatus.ERROR,
    },
)
# `--- PASS: TestA/sub (0.00s)`, indented for subtests, which are tests of their own.
gotest = _parser(
    r"--- (?P<word>PASS|FAIL|SKIP): (?P<name>.+) \(.+\)$",
    {"PASS": _PASSED, "FAIL": _FAILED, "SKIP": _SKIPPED},
)
# `[       OK ] Suite.Name (3 ms)`. The failures listed at the end have no duration; skipped tests are left
# out.
googletest = _parser(
    r".*\[\s*(?P<word>OK|FAILED)\s*\]\s(?P<name>.*)\s\(.*\)$", {"OK": _PASSED, "FAILED": _FAILED}
)
# Vitest with `--reporter=verbose`. A number at the end is a duration.
vitest = _parser(
    r"(?P<word>[✓×↓])\s(?P<name>.+?)(?:\s(?:\d+\s*m?s?|\[skipped\]))?$",  # noqa: RUF001
    {"✓": _PASSED, "×": _FAILED, "↓": _SKIPPED},  # noqa: RUF001
)

_REDIS = re.compile(r"\[(ok|err|skip|ignore)\]:\s(.+?)(?:\s\(\d+\s*m?s\))?$")
_REDIS_FILE = re.compile(r"\s+in\s+\S+$")
_REDIS_WORDS = {"ok": _PASSED, "err": _FAILED, "skip": _SKIPPED, "ignore": _SKIPPED}


def redis(log: str) -> Statuses:
    """The Tcl suite of Redis: `[ok]: name (12 ms)`, `[err]: name in tests/unit/x.tcl`, the file left out."""
    statuses: Statuses = {}
    for line in lines_of(log):
        if match := _REDIS.match(line.strip()):
            name = _REDIS_FILE.sub("", match[2]) if match[1] == "err" else match[2]
            statuses[name] = _REDIS_WORDS[match[1]]
    return statuses


_SYMPY_HEADER = re.compile(r"_+ (\S.*?\.py:\S+) _+")
_SYMPY_ENDINGS = {" E": LogStatus.ERROR, " F": _FAILED, " ok": _PASSED}


def sympy(log: str) -> Statuses:
    """SymPy's `bin/test -C --verbose`: `test_a ok`, and a header `path.py:test` for each failure."""
    statuses: Statuses = {}
    # Headers come first, so that a line of its own decides the status of a test that has both.
    for line in lines_of(log):
        for match in _SYMPY_HEADER.finditer(line):
            statuses[match[1]] = _FAILED
    for line in map(str.strip, lines_of(log)):
        if line.startswith("test_"):
            statuses.update(
                {
                    line.split()[0]: status
                    for ending, status in _SYMPY_ENDINGS.items()
                    if line.endswith(ending)
                }
            )
    return statuses
