"""unittest with `-v`, and Django's runner, which prints the same: `test_a (module.Class) ... ok`.

If a test has a docstring, its first line stands before the dots and is the id. A test's output may come
between the dots and `ok`. Then a line that begins with `ok` belongs to the last test named.
"""

import re

from harnessgym.grading.log import LogStatus, Statuses, by_line, lines_of

_DOTS = " ... "
_PASSED = (" ... ok", " ... OK", " ...  OK")
_FAILED = {" ... FAIL": LogStatus.FAILED, " ... ERROR": LogStatus.ERROR}
_HEADERS = {"FAIL:": LogStatus.FAILED, "ERROR:": LogStatus.ERROR}
_VERSION = "--version is equivalent to version"
"""A test of Django whose report spans several lines."""
_MIGRATION = "Applying sites.0002_alter_domain_unique...test_no_migrations"
"""Output that precedes the name of another test on its line."""
_VERBOSE = re.compile(
    r"(?P<name>.+?) \.\.\. (?:.*\b)?(?P<word>ok|FAIL|ERROR|skipped|expected failure|unexpected success)(?: ['\"].*)?$"
)
_WORDS = {
    "ok": LogStatus.PASSED, "FAIL": LogStatus.FAILED, "ERROR": LogStatus.ERROR, "skipped": LogStatus.SKIPPED,
    "expected failure": LogStatus.XFAIL, "unexpected success": LogStatus.FAILED,
}  # fmt: skip


def verbose(log: str) -> Statuses:
    """unittest's own runner: the id is everything before the dots."""
    return by_line(log, _VERBOSE, _WORDS)


def django(log: str) -> Statuses:
    """Django's runner."""
    found: Statuses = {}
    last = None
    for raw in lines_of(log):
        line = raw.strip()
        if _VERSION in line:
            found[_VERSION] = LogStatus.PASSED
        if _DOTS in line:
            last = line.split(_DOTS)[0]
        found.update(_reports(line))
        if line.startswith("ok") and last is not None:
            found[last] = LogStatus.PASSED
    return found


def _reports(line: str) -> Statuses:
    """The reports in one stripped line."""
    found: Statuses = {}
    passed = next((ending for ending in _PASSED if line.endswith(ending)), None)
    if passed is not None:
        text = line.split("...", 1)[-1].strip() if line.startswith(_MIGRATION) else line
        found[text.rsplit(passed, 1)[0]] = LogStatus.PASSED
    if " ... skipped" in line:
        found[line.split(" ... skipped", maxsplit=1)[0]] = LogStatus.SKIPPED
    for ending, status in _FAILED.items():
        if line.endswith(ending):
            found[line.split(ending, maxsplit=1)[0]] = status
    for header, status in _HEADERS.items():
        if line.startswith(header) and len(line.split()) > 1:
            found[line.split()[1]] = status
    return found
