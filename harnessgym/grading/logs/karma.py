"""Karma: the tree of its mocha reporter, and the failures that browsers report."""

import re

from harnessgym.grading.log import LogStatus, Statuses, lines_of, without_escapes

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
    found: Statuses = {}
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
            found[" > ".join([*groups, match["name"]])] = (
                LogStatus.PASSED if match["sign"] == "✔" else LogStatus.FAILED
            )
        elif match["indent"] and len(match["indent"]) > depth:
            depth = len(match["indent"])
            groups.append(match["name"])
        elif match["indent"] and len(match["indent"]) < depth:
            depth = len(match["indent"])
            groups = groups[:-1]
    return found


def chrome(log: str) -> Statuses:
    """Failures only."""
    return _failures(without_escapes(log), (_CHROME,))


def browsers(log: str) -> Statuses:
    """Failures only."""
    return _failures(log, _BROWSERS)


def _failures(log: str, patterns: tuple[re.Pattern[str], ...]) -> Statuses:
    matches = (pattern.search(line) for line in lines_of(log) for pattern in patterns)
    return {match[1]: LogStatus.FAILED for match in matches if match is not None}
