"""Finds tags in a text that arrives in pieces."""

import re
from functools import cache


class Tags:
    """Finds the first of several tags in a text that is still growing."""

    def __init__(self, tags: tuple[str, ...]) -> None:
        # The longest first: one tag may begin with another.
        self._tags = sorted(tags, key=len, reverse=True)
        self._any = re.compile("|".join(map(re.escape, self._tags)))
        self._firsts = re.compile("[" + re.escape("".join({tag[0] for tag in tags})) + "]")

    @classmethod
    @cache
    def of(cls, tags: tuple[str, ...]) -> "Tags":
        """The finder for these tags. There are few kinds, so each is made once."""
        return cls(tags)

    def find(self, text: str) -> tuple[str, int]:
        """The first tag and its index; "" and the length of the text that is in no tag, if there is none."""
        found = self._any.search(text)
        if found is not None:
            return found[0], found.start()
        begin = max(0, len(text) - len(self._tags[0]) + 1)
        for first in self._firsts.finditer(text, begin):
            rest = text[first.start() :]
            if any(tag.startswith(rest) for tag in self._tags):
                return "", first.start()
        return "", len(text)
