"""Parses tool calls that are a list of Python calls, as Llama 3.2, Llama 4 and LFM2 write them.

    [name(key=1, other='text'), name()]

The list is the whole answer, or between tags.
"""

import re
from collections.abc import Sequence

from proxies import strict_json
from proxies.parsers.literal_values import ValueReader
from proxies.parsers.tagged import NamedCall, TaggedParser

_BEGINNING = re.compile(r"\[\s{0,9}[A-Za-z_][\w.-]{0,99}\s{0,9}\(")
_UNDECIDED = re.compile(r"(?:\[\s{0,9}(?:[A-Za-z_][\w.-]{0,99}\s{0,9})?)?")
_NAME = re.compile(r"[A-Za-z_][\w.-]*")
_KEY = re.compile(r"[^\W\d]\w*")
_STRING = re.compile(r"'((?:[^'\\]|\\.)*)'|\"((?:[^\"\\]|\\.)*)\"", re.DOTALL)
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "a": "\a", "0": "\0", "\n": ""}
_ESCAPED |= {letter: letter for letter in "'\"\\"}


class PythonicParser(TaggedParser):
    """Arguments are Python literals with names. Strings may have line ends, and objects may be JSON."""

    calls = {  # noqa: RUF012
        "<|tool_call_start|>": "<|tool_call_end|>",
        "<|python_start|>": "<|python_end|>",
    }
    separator = 0

    @classmethod
    def markers(cls) -> tuple[str, ...]:
        """None: calls need no tag."""
        return ()

    def begins_call(self, text: str) -> bool | None:
        """See `TaggedParser.begins_call`."""
        if _BEGINNING.match(text):
            return True
        return None if _UNDECIDED.fullmatch(text) else False

    def read_calls(self, tag: str, body: str) -> Sequence[NamedCall] | None:  # noqa: ARG002
        """See `TaggedParser.read_calls`."""
        reader = _PythonReader(body)
        calls: list[NamedCall] = []

        def call() -> str:
            calls.append(reader.call())
            return ""

        try:
            reader.skip()
            if not reader.take("["):
                return None
            reader.items("]", call)
            reader.skip()
            for _, arguments in calls:
                strict_json.loads(arguments)
        except ValueError:
            return None
        return calls if reader.at == len(body) else None


class _PythonReader(ValueReader):
    def call(self) -> NamedCall:
        """The call at this place. Raises `ValueError`."""
        name = self.match(_NAME)
        self.skip()
        if name is None or not self.take("("):
            raise ValueError("not a call")
        keys: set[str] = set()
        self._named = True
        arguments = self.items(")", lambda: self._argument(keys))
        return name[0], "{" + ", ".join(arguments) + "}"

    def _argument(self, keys: set[str]) -> str:
        self._named = True
        return self.member(keys, "=", 1)

    def key(self) -> str:
        """See `ValueReader.key`: a name before `=`, a string in an object."""
        named, self._named = self._named, False
        name = self.match(_KEY) if named else None
        key = name[0] if name is not None else None if named else self.string()
        if key is None:
            raise ValueError("not a key")
        return key

    def string(self) -> str | None:
        """See `ValueReader.string`."""
        string = self.match(_STRING)
        if string is None:
            return None
        written = string[1] if string[1] is not None else string[2]
        return _ESCAPE.sub(_unescaped, written)


def _unescaped(escape: "re.Match[str]") -> str:
    digits = escape[1] or escape[2] or escape[3]
    if digits is None:
        # Python keeps the backslash of an escape that means nothing.
        return _ESCAPED.get(escape[4], escape[0])
    number = int(digits, 16)
    if number > 0x10FFFF or 0xD800 <= number < 0xE000:
        raise ValueError("not a character")
    return chr(number)
