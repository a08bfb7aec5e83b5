"""Python's runners: pytest, unittest and Django's.

pytest with `-rA` or `-v` prints `STATUS id` in the short summary, `id STATUS` in progress lines. Ids end at
the first space, except for datasets that were made differently (`spaced`). The wrapped progress line
`PASSED [100%]` counts as a test of that name, because lists of expected tests contain it. `SKIPPED [3]
path:1: why` is a count and no test.

unittest with `-v` prints `test_a (module.Class) ... ok`. If a test has a docstring, its first line stands
before the dots and is the id. A test's output may come between the dots and `ok`. Then a line that begins
with `ok` belongs to the last test named.
"""

import re

from harnessgym.grading.log import LogStatus, Statuses, by_line, lines_of, without_escapes

_WORDS = tuple(status.value for status in LogStatus)
_COUNT = re.compile(r"\[\d+\]")
_OPTION = re.compile(r"(.*?)\[(.*)\]")
_BUTTONS = {"MouseButton.LEFT": "1", "MouseButton.RIGHT": "3"}
_CONTROLS = dict.fromkeys(range(1, 32))
_COLOUR = re.compile(r"\[(\d+)m")
_HEADER = "short test summary info"


def _report(line: str) -> tuple[str, LogStatus] | None:
    """The test and status of a line that begins with a status, if it is one."""
    if not line.startswith(_WORDS):
        return None
    if line.startswith(LogStatus.FAILED):
        line = line.replace(" - ", " ")
    words = line.split()
    if (
        len(words) < 2
        or words[0] not in _WORDS
        or (words[0] == LogStatus.SKIPPED and _COUNT.fullmatch(words[1]))
    ):
        return None
    return words[1], LogStatus(words[0])


def plain(log: str) -> Statuses:
    """`STATUS id` lines."""
    return dict(filter(None, map(_report, lines_of(log))))


def options(log: str) -> Statuses:
    """Like `plain`, but keeps only the last part of a parameter that is a path.

    The rest of the path depends on the machine.
    """
    statuses: Statuses = {}
    for test, status in plain(log).items():
        match = _OPTION.match(test)
        path = (
            match is not None
            and match[2].startswith("/")
            and not match[2].startswith("//")
            and "*" not in match[2]
        )
        statuses[f"{match[1]}[/{match[2].rsplit('/', 1)[-1]}]" if match is not None and path else test] = (
            status
        )
    return statuses


def matplotlib(log: str) -> Statuses:
    """Like `plain`, but writes enumeration members in ids as numbers, as older versions print them."""
    for name, number in _BUTTONS.items():
        log = log.replace(name, number)
    return plain(log)


def spaced(log: str) -> Statuses:
    """Ids with spaces, colours, and the `id STATUS` lines of older versions."""
    statuses: Statuses = {}
    for raw in lines_of(log):
        line = _COLOUR.sub("", raw).translate(_CONTROLS)
        if line.startswith(_WORDS):
            words = (line.split(" - ", 1)[0] if line.startswith(LogStatus.FAILED) else line).split()
            if (
                len(words) > 1
                and words[0] in _WORDS
                and not (words[0] == LogStatus.SKIPPED and _COUNT.fullmatch(words[1]))
            ):
                statuses[" ".join(words[1:])] = LogStatus(words[0])
        elif line.endswith(_WORDS):
            words = line.split()
            if len(words) > 1 and words[-1] in _WORDS:
                statuses[" ".join(words[:-1])] = LogStatus(words[-1])
    return statuses


def seaborn(log: str) -> Statuses:
    """Failures in the summary, and passes in lines of either kind. Skipped tests are left out."""
    statuses: Statuses = {}
    for line in lines_of(log):
        words = line.split()
        if len(words) < 2:
            continue
        if line.startswith(LogStatus.FAILED):
            statuses[words[1]] = LogStatus.FAILED
        elif words[1] == LogStatus.PASSED and f" {LogStatus.PASSED} " in line:
            statuses[words[0]] = LogStatus.PASSED
        elif line.startswith(LogStatus.PASSED):
            statuses[words[1]] = LogStatus.PASSED
    return statuses


def summary(log: str) -> Statuses:
    """Reads the short summary only. Ids have no file and are joined by dots: `TestClass.test_name`."""
    statuses: Statuses = {}
    _, header, rest = without_escapes(log).replace("\r", "").partition(_HEADER)
    for line in lines_of(rest.split(_HEADER)[0] if header else ""):
        status = next(
            (word for word in (LogStatus.PASSED, LogStatus.FAILED, LogStatus.ERROR) if word in line), None
        )
        if status is not None:
            test = ".".join(line.split("::")[1:])
            statuses[test if status is LogStatus.PASSED else test.split(" - ")[0]] = status
    return statuses


_DOTS = " ... "
_PASSED = (" ... ok", " ... OK", " ...  OK")
_FAILED = {" ... FAIL": LogStatus.FAILED, " ... ERROR": LogStatus.ERROR}
_HEADERS = {"FAIL:": LogStatus.FAILED, "ERROR:": LogStatus.ERROR}
_VERSION = "--version is equivalent to version"
"""A test of Django whose report spans several lines."""
_MIGRATION = "Applying sites.0002_alter_domain_unique...test_no_migrations"
"""Output that precedes the name of another test on its line."""
_VERBOSE = re.compile(
    r"(?P<name>.+?) \.\.\. (?:.*\b)?(?P<word>ok|FAIL|ERROR|skipped|expected "
    r"failure|unexpected success)(?: ['\"].*)?$"
)
_UNITTEST_WORDS = {
    "ok": LogStatus.PASSED, "FAIL": LogStatus.FAILED, "ERROR": LogStatus.ERROR, "skipped": LogStatus.SKIPPED,
    "expected failure": LogStatus.XFAIL, "unexpected success": LogStatus.FAILED,
}  # fmt: skip


def verbose(log: str) -> Statuses:
    """unittest's own runner: the id is everything before the dots."""
    return by_line(log, _VERBOSE, _UNITTEST_WORDS)


def django(log: str) -> Statuses:
    """Django's runner."""
    statuses: Statuses = {}
    last = None
    for raw in lines_of(log):
        line = raw.strip()
        if _VERSION in line:
            statuses[_VERSION] = LogStatus.PASSED
        if _DOTS in line:
            last = line.split(_DOTS)[0]
        statuses.update(_reports(line))
        if line.startswith("ok") and last is not None:
            statuses[last] = LogStatus.PASSED
    return statuses


def _reports(line: str) -> Statuses:
    """The reports in one stripped line."""
    statuses: Statuses = {}
    passed = next((ending for ending in _PASSED if line.endswith(ending)), None)
    if passed is not None:
        text = line.split("...", 1)[-1].strip() if line.startswith(_MIGRATION) else line
        statuses[text.rsplit(passed, 1)[0]] = LogStatus.PASSED
    if " ... skipped" in line:
        statuses[line.split(" ... skipped", maxsplit=1)[0]] = LogStatus.SKIPPED
    for ending, status in _FAILED.items():
        if line.endswith(ending):
            statuses[line.split(ending, maxsplit=1)[0]] = status
    for header, status in _HEADERS.items():
        if line.startswith(header) and len(line.split()) > 1:
            statuses[line.split()[1]] = status
    return statuses
