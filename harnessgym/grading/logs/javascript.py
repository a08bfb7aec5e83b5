"""JavaScript's runners: Jest (`--verbose` trees, `--json` put into lines, lines for each file), Karma (the
tree of its mocha reporter, and the failures that browsers report), and Mocha's reporters and others that
number failures.
"""

import re

from harnessgym.grading.log import LogStatus, Statuses, by_line, lines_of, without_escapes

_VERBOSE = re.compile(r"(?P<word>[✓✕○])\s(?P<name>.+?)(?:\s\(\d+\s*m?s\))?$")
_SIGNS = {"✓": LogStatus.PASSED, "✕": LogStatus.FAILED, "○": LogStatus.SKIPPED}
_TRANSFORMED = re.compile(r"\[(?P<word>PASSED|FAILED)\]\s(?P<name>.+)$")
_FILES = re.compile(r"(?P<word>PASS|FAIL)\s(?P<name>.*?)(?:\s\([\d.]+(?:ms|\ss|s)\))?$")
_WORDS = {
    "PASSED": LogStatus.PASSED,
    "FAILED": LogStatus.FAILED,
    "PASS": LogStatus.PASSED,
    "FAIL": LogStatus.FAILED,
}


def verbose(log: str) -> Statuses:
    """`✓ name (3 ms)`. Tests with one name in different groups count as one."""
    return by_line(log, _VERBOSE, _SIGNS)


def transformed(log: str) -> Statuses:
    """`[PASSED] group test`."""
    return by_line(log, _TRANSFORMED, _WORDS)


def files(log: str) -> Statuses:
    """`PASS path (1.2 s)`."""
    return by_line(log, _FILES, _WORDS)


_STARTED = "Starting browser"
_TREE = re.compile(r"(?P<indent>\s*)(?P<sign>[✔✖])?\s(?P<name>.*)$")
_CHROME = re.compile(r"Chrome\s[\d.]+[^\S\r\n]\(.+?\)[^\S\r\n](.*)FAILED$")
_BROWSERS = (
    re.compile(r"2KPhantomJS\s[\d.]+\s\(Linux\s[\d.]+\)\s(.*)FAILED$"),
    re.compile(r"2KPhantomJS\s[\d.]+\s\(Linux\sx86_64\)\s(.*)FAILED$"),
    re.compile(r"Chrome\sHeadless\s.*?\s\(Linux\sx86_64\)\s(.*)FAILED$"),
    re.compile(r"HeadlessChrome\s[\d.]+\s\(Linux\s[\d.]+\)\s(.*)FAILED$"),
)


def tree(log: str) -> Statuses:
    """`group > test`, from the start of a browser to `SUMMARY:`. A line with less indent leaves one group."""
    statuses: Statuses = {}
    groups: list[str] = []
    depth = -1
    started = False
    for line in lines_of(log):
        if line.startswith("SUMMARY:"):
            break
        if _STARTED in line:
            started = True
            continue
        match = _TREE.match(line) if started else None
        if match is None:
            continue
        if match["sign"]:
            statuses[" > ".join([*groups, match["name"]])] = (
                LogStatus.PASSED if match["sign"] == "✔" else LogStatus.FAILED
            )
        elif match["indent"] and len(match["indent"]) > depth:
            depth = len(match["indent"])
            groups.append(match["name"])
        elif match["indent"] and len(match["indent"]) < depth:
            depth = len(match["indent"])
            groups = groups[:-1]
    return statuses


def chrome(log: str) -> Statuses:
    """Failures only."""
    return _failures(without_escapes(log), (_CHROME,))


def browsers(log: str) -> Statuses:
    """Failures only."""
    return _failures(log, _BROWSERS)


def _failures(log: str, patterns: tuple[re.Pattern[str], ...]) -> Statuses:
    matches = (pattern.search(line) for line in lines_of(log) for pattern in patterns)
    return {match[1]: LogStatus.FAILED for match in matches if match is not None}


_DURATION = re.compile(r"\s*(?:\(\s*)?\d+(?:\.\d+)?\s*(?:ms|s)\s*\)?\s*$", re.IGNORECASE)
_PASSED = re.compile(r"✔\s+(.*)$")
_SKIPPED = re.compile(r"-\s+(.*)$")
_NUMBERED = re.compile(r"\d+\)\s+(.*)$")
_HEADED = re.compile(r"\d+\)\s+(.*):$")
_FLAGGED = re.compile(r"\[W\]\s*\d+\)\s+(.*)$")
_AT_START = re.compile(r"\d+\)\s(.*)")
_BLOCK = re.compile(r"  \d+\)(.*)$")


def spec(log: str) -> Statuses:
    """`✔ name`, `1) name`, `- name`. A pass never replaces a failure."""
    return _first_match(
        log, {_SKIPPED: LogStatus.SKIPPED, _NUMBERED: LogStatus.FAILED, _PASSED: LogStatus.PASSED}
    )


def marked_failures(log: str) -> Statuses:
    """`✔ name`, `[W] 1) name` or `1) name:`, `- name`."""
    patterns = {
        _SKIPPED: LogStatus.SKIPPED,
        _HEADED: LogStatus.FAILED,
        _FLAGGED: LogStatus.FAILED,
        _PASSED: LogStatus.PASSED,
    }
    return _first_match(log, patterns)


def numbered(log: str) -> Statuses:
    """`1) name` at the start of a line: failures only, as Jasmine prints them."""
    matches = (_AT_START.match(line) for line in lines_of(log))
    return {match[1].strip(): LogStatus.FAILED for match in matches if match is not None}


def minimal(log: str) -> Statuses:
    """`  1) group` and the lines below it, up to one with an `Error`: failures only.

    Runs of white space become one space.
    """
    statuses: Statuses = {}
    name: list[str] | None = None
    for line in lines_of(log):
        if match := _BLOCK.match(line):
            name = [match[1]]
        elif name is not None and "Error" in line:
            statuses[" ".join(" ".join(name).split())], name = LogStatus.FAILED, None
        elif name is not None:
            name.append(line)
    return statuses


def _first_match(log: str, patterns: dict[re.Pattern[str], LogStatus]) -> Statuses:
    statuses: Statuses = {}
    for line in map(str.strip, lines_of(log)):
        match, status = next(
            ((match, status) for pattern, status in patterns.items() if (match := pattern.match(line))),
            (None, None),
        )
        if match is None or status is None or not (name := _DURATION.sub("", match[1]).strip()):
            continue
        if status is not LogStatus.PASSED or name not in statuses:
            statuses[name] = status
    return statuses
