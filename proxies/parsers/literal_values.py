"""Reads values in notations that are like JSON but for their strings and words, and gives their JSON text."""

import json
import re
from collections.abc import Callable, Mapping
from typing import ClassVar

from proxies.strict_json import MAX_DEPTH

_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?(?![\w.])")
_WORD = re.compile(r"[A-Za-z]+")
_SPACE = re.compile(r"\s*")


class ValueReader:
    """Reads a text from its beginning; `at` is how far it has come. Numbers keep the text that was written.

    A notation defines `string` and `key`.
    """

    words: ClassVar[Mapping[str, str]] = {
        "true": "true",
        "false": "false",
        "null": "null",
        "True": "true",
        "False": "false",
        "None": "null",
    }
    """The JSON text of each word."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def string(self) -> str | None:
        """The string at this place; None if there is none. Raises `ValueError` for one that does not end."""
        raise NotImplementedError

    def key(self) -> str:
        """The key at this place. Raises `ValueError` if there is none."""
        raise NotImplementedError

    def value(self, depth: int = 0) -> str:
        """The JSON text of the value at this place. Raises `ValueError`."""
        if depth > MAX_DEPTH:
            raise ValueError("nested too deeply")
        self.skip()
        if self.take("["):
            return f"[{', '.join(self.items(']', lambda: self.value(depth + 1)))}]"
        if self.take("{"):
            return self.object(depth)
        string = self.string()
        if string is not None:
            return json.dumps(string, ensure_ascii=False)
        if number := self.match(_NUMBER):
            return number[0]
        word = self.match(_WORD)
        if word is None or word[0] not in self.words:
            raise ValueError("not a value")
        return self.words[word[0]]

    def object(self, depth: int = 0) -> str:
        """The JSON text of an object whose opening brace was taken. Raises `ValueError`."""
        keys: set[str] = set()
        members = self.items("}", lambda: self.member(keys, ":", depth + 1))
        return "{" + ", ".join(members) + "}"

    def member(self, keys: set[str], between: str, depth: int) -> str:
        """The JSON text of a key and its value, with `between` between them. The key becomes one of `keys`.

        Raises `ValueError`, also for a key that is one of them.
        """
        key = self.key()
        self.skip()
        if key in keys or not self.take(between):
            raise ValueError("not a member")
        keys.add(key)
        return f"{json.dumps(key, ensure_ascii=False)}: {self.value(depth)}"

    def items(self, end: str, item: Callable[[], str]) -> list[str]:
        """Items that are separated by commas, up to and with `end`. Raises `ValueError`."""
        out: list[str] = []
        self.skip()
        while not self.take(end):
            if out and not self.take(","):
                raise ValueError("a comma is missing")
            self.skip()
            out.append(item())
            self.skip()
        return out

    def skip(self) -> None:
        """Pass over whitespace."""
        self.match(_SPACE)

    def take(self, text: str) -> bool:
        """Whether this text comes next; passes over it."""
        found = self.text.startswith(text, self.at)
        self.at += len(text) if found else 0
        return found

    def match(self, pattern: "re.Pattern[str]") -> "re.Match[str] | None":
        """Whether a pattern matches here; passes over the match."""
        found = pattern.match(self.text, self.at)
        self.at = self.at if found is None else found.end()
        return found
