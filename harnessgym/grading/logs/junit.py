"""JUnit XML anywhere in a log, even if broken: `<testcase classname="A" name="b">` is the test `A b`.

The parser looks for tags and does not parse XML, because logs put other text around and between documents.
"""

import re

from harnessgym.grading.log import LogStatus, Statuses

_OPEN = re.compile(r"<testcase\b([^<>]*)>")
_ATTRIBUTE = re.compile(r'(\w+)="([^"]*)"')
_CLOSE = "</testcase>"
_WINDOW = 4_096
"""Characters to search after an opening tag that is never closed."""
_TAGS = {"<failure": LogStatus.FAILED, "<error": LogStatus.ERROR, "<skipped": LogStatus.SKIPPED}


def junit(log: str) -> Statuses:
    """Parses every `testcase`. The id of a test without a class is its name alone."""
    found: Statuses = {}
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
        found[f"{attributes.get('classname', '')} {name}".strip()] = status
    return found
