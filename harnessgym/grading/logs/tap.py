"""TAP, `ok 1 - name`; and PHPUnit with `--testdox`: a class, `Name (Full.Name)`, and its tests below it."""

import re

from harnessgym.grading.log import LogStatus, Statuses, by_line, lines_of

_LINE = re.compile(r"(?P<word>ok|not ok) \d+ (?P<name>.+)$")
_WORDS = {"ok": LogStatus.PASSED, "not ok": LogStatus.FAILED}
_NESTED = re.compile(r"(?P<word>not ok|ok)\s+\d+\s+-\s+(?P<name>.*)$")
_DURATION = re.compile(r"\s*(?:\(\s*)?\d+(?:\.\d+)?\s*(?:ms|s)\s*\)?\s*$", re.IGNORECASE)
_SKIPS = ("# skip", "# todo")


def tap(log: str) -> Statuses:
    """The id is everything after the number, the dash included. Directives are not parsed."""
    return by_line(log, _LINE, _WORDS)


def nested(log: str) -> Statuses:
    """Subtests in braces: `outer :: inner`. To-do tests count as skipped; a pass never replaces a failure."""
    statuses: Statuses = {}
    above: list[str] = []
    for line in map(str.strip, lines_of(log)):
        if line and not line.strip("}"):
            above = above[: max(0, len(above) - len(line))]
            continue
        opens = line.endswith("{")
        match = _NESTED.match(line.removesuffix("{").rstrip())
        if match is None or not (
            name := _DURATION.sub("", re.split(r"\s+#", match["name"], maxsplit=1)[0]).strip()
        ):
            continue
        full = " :: ".join([*above, name])
        if any(sign in match["name"].lower() for sign in _SKIPS):
            statuses[full] = LogStatus.SKIPPED
        elif match["word"] == "not ok" or full not in statuses:
            statuses[full] = _WORDS[match["word"]]
        if opens:
            above.append(name)
    return statuses


_CLASS = re.compile(r"(\w.+) \(.+\)$")
_TEST = re.compile(r"\s*([✔✘↩])\s*(.*)$")
_SIGNS = {"✔": LogStatus.PASSED, "✘": LogStatus.FAILED, "↩": LogStatus.SKIPPED}


def testdox(log: str) -> Statuses:
    """`Class > test`."""
    statuses: Statuses = {}
    suite: str | None = None
    for line in lines_of(log):
        if match := _CLASS.match(line):
            suite = match[1]
        elif match := _TEST.match(line):
            statuses[f"{suite} > {match[2]}"] = _SIGNS[match[1]]
    return statuses
