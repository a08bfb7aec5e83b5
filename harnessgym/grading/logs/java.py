"""Java's runners: Maven, JUnit XML and Gradle.

Maven prints little about tests that pass. So there are four parsers, those that datasets use. JUnit XML may
be anywhere in a log, even broken: `<testcase classname="A" name="b">` is the test `A b`. Its parser looks
for tags and does not parse XML, because logs put other text around and between documents. Gradle with test
logging prints `Class > method PASSED`; other output may separate the name from the status.
"""

import re
from collections import deque

from harnessgym.grading.log import LogStatus, Statuses, lines_of

_OPEN = re.compile(r"<testcase\b([^<>]*)>")
_ATTRIBUTE = re.compile(r'(\w+)="([^"]*)"')
_CLOSE = "</testcase>"
_WINDOW = 4_096
"""Characters to search after an opening tag that is never closed."""
_TAGS = {"<failure": LogStatus.FAILED, "<error": LogStatus.ERROR, "<skipped": LogStatus.SKIPPED}


def junit(log: str) -> Statuses:
    """Parses every `testcase`. The id of a test without a class is its name alone."""
    statuses: Statuses = {}
    at = 0
    while (match := _OPEN.search(log, at)) is not None:
        at = match.end()
        attributes = dict(_ATTRIBUTE.findall(match[1]))
        if not (name := attributes.get("name")):
            continue
        inside = ""
        if not match[1].rstrip().endswith("/"):
            closed = log.find(_CLOSE, at)
            inside = log[at : closed if closed >= 0 else at + _WINDOW]
            at = closed + len(_CLOSE) if closed >= 0 else at
        status = next((status for tag, status in _TAGS.items() if tag in inside), LogStatus.PASSED)
        statuses[f"{attributes.get('classname', '')} {name}".strip()] = status
    return statuses


_ASKED = re.compile(r".*-Dtest=(\S+)")
_BUILT = re.compile(r".*BUILD (SUCCESS|FAILURE)$")
_RUNNING = re.compile(r"(?:\[INFO\]\s+)?Running\s+(\S.*)$")
_BARE = re.compile(r"Running\s+(\S.*)$")
_COUNTS = re.compile(r"Tests run:\s*\d+,\s*Failures:\s*(\d+),\s*Errors:\s*(\d+),\s*Skipped:\s*(\d+)")
_FAILURE = re.compile(r"\[ERROR\]\s+([A-Za-z0-9_$.]+)\.([A-Za-z0-9_$]+)(?::\d+)?\b")
_MODULE = re.compile(
    r"\[INFO\]\s+(?P<name>\S+(?: \S+)*?)\s+\.\.+\s+(?P<word>SUCCESS|FAILURE|SKIPPED)(?:\s|\[|$)"
)
_BUILD = {"SUCCESS": LogStatus.PASSED, "FAILURE": LogStatus.FAILED, "SKIPPED": LogStatus.SKIPPED}
_SUITE = "__suite__"


def by_build(log: str) -> Statuses:
    """One build for each test under `set -x`: `-Dtest=NAME`, then `BUILD SUCCESS` or `FAILURE`.

    Builds before the first test belong to something else, unless tests are left over at the end: the trace
    of a command may arrive after its output.
    """
    statuses: Statuses = {}
    asked: deque[str] = deque()
    early: deque[str] = deque()
    for line in map(str.strip, lines_of(log)):
        if match := _ASKED.match(line):
            asked.append(match[1])
        if match := _BUILT.match(line):
            if asked:
                statuses[asked.popleft()] = _BUILD[match[1]]
            else:
                early.append(match[1])
    return {**statuses, **{test: _BUILD[result] for test, result in zip(asked, early, strict=False)}}


def classes(log: str) -> Statuses:
    """`Running CLASS`, then `Tests run: ...`: the status of a whole class."""
    statuses: Statuses = {}
    running = None
    for line in map(str.strip, lines_of(log)):
        if match := _BARE.match(line):
            running = match[1]
        elif (match := _COUNTS.match(line)) and running is not None:
            statuses[running], running = _of_counts(match), None
    return statuses


def surefire(log: str) -> Statuses:
    """Classes and their failed methods, JUnit XML in the log, and `by_build` for the rest."""
    statuses: Statuses = {}
    seen: Statuses = {}
    running = None
    for line in map(str.strip, lines_of(log)):
        if match := _RUNNING.match(line):
            running = match[1]
            seen[running] = LogStatus.PASSED
        elif match := _FAILURE.match(line):
            error = "Exception" in line and "AssertionError" not in line
            statuses[f"{match[1]}.{match[2]}"] = LogStatus.ERROR if error else LogStatus.FAILED
            statuses.setdefault(match[1], LogStatus.FAILED)
        elif match := _COUNTS.search(line):
            name = line.rsplit(" in ", 1)[-1].strip().rstrip(".:;") if " in " in line else running
            if name:
                statuses.setdefault(name, _of_counts(match))
            running = None
    # The more specific source wins. Classes that merely started are used only if there is nothing else.
    return {**by_build(log), **junit(log), **statuses} or seen


def reactor(log: str) -> Statuses:
    """The modules of the reactor's summary, and the first `Tests run: ...` under the name `__suite__`."""
    statuses: Statuses = {}
    for line in map(str.strip, lines_of(log)):
        if match := _MODULE.match(line):
            statuses[match["name"]] = _BUILD[match["word"]]
        elif match := _COUNTS.search(line):
            failures, errors, skipped = map(int, match.groups())
            run = int(match[0].split(":")[1].split(",")[0])
            bad = LogStatus.FAILED if failures else LogStatus.ERROR if errors else None
            statuses.setdefault(_SUITE, bad or (LogStatus.SKIPPED if skipped == run else LogStatus.PASSED))
    return statuses


def _of_counts(match: re.Match[str]) -> LogStatus:
    failures, errors, skipped = map(int, match.groups())
    if failures or errors:
        return LogStatus.FAILED
    return LogStatus.SKIPPED if skipped else LogStatus.PASSED


_LINE = re.compile(r"(?P<name>[^>].+?)\s+(?P<word>PASSED|FAILED)(?:\s+\(\d+(?:\.\d+)?s\))?$")
_NAME = re.compile(r"[^>]\S*\s+>\s+\S+$")
_WORDS = {"PASSED": LogStatus.PASSED, "FAILED": LogStatus.FAILED}


def gradle(log: str) -> Statuses:
    """Parses the log. Skipped tests are left out.

    A status alone on a line belongs to the last name that was alone on a line.
    """
    statuses: Statuses = {}
    waiting = None
    for line in map(str.strip, lines_of(log)):
        if match := _LINE.match(line):
            statuses[match["name"]], waiting = _WORDS[match["word"]], None
        elif _NAME.match(line):
            waiting = line
        elif waiting is not None and line in _WORDS:
            statuses[waiting], waiting = _WORDS[line], None
    return statuses
