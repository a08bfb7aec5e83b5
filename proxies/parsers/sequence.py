"""Matches the parts that a body is made of."""

import re
from collections.abc import Sequence


def parts_of(pattern: "re.Pattern[str]", text: str) -> Sequence["re.Match[str]"] | None:
    """The matches that follow one another through a whole text; None if there is anything else.

    `pattern` allows whitespace before a part; whitespace at the end is allowed too.
    """
    parts = []
    at = 0
    while (part := pattern.match(text, at)) is not None:
        parts.append(part)
        at = part.end()
    return parts if not text[at:].strip() else None
