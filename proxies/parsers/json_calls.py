"""Reads tool calls whose arguments are JSON. Arguments keep the text that was written."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import ClassVar

from proxies import strict_json
from proxies.parsers.sequence import parts_of
from proxies.parsers.tagged import NamedCall, TaggedParser

_DECODER = json.JSONDecoder()
_SPACE = " \t\r\n"


class ListedCallsParser(TaggedParser):
    """Parses turns with one list of calls, each with a head and arguments, between two tags."""

    call: ClassVar["re.Pattern[str]"]
    """One call of the list; its groups are the head and the arguments."""
    separator = 0

    def read_call(self, head: str, arguments: str) -> NamedCall | None:
        """A call of the list; None if it is malformed."""
        raise NotImplementedError

    def read_calls(self, tag: str, body: str) -> Sequence[NamedCall] | None:  # noqa: ARG002
        """See `TaggedParser.read_calls`."""
        parts = parts_of(self.call, body)
        return None if parts is None else all_read([self.read_call(part[1], part[2]) for part in parts])


def read_object(
    text: str, arguments: str = "arguments", optional: Mapping[str, str] | None = None
) -> NamedCall | None:
    """The call in a JSON object with exactly `name` and `arguments`, an object; None if it is malformed.

    `arguments` names the member with the arguments. Those in `optional` may be there too, with JSON that
    begins with the given text.
    """
    try:
        members = strict_json.spans(text)
        for name, beginning in (optional or {}).items():
            if not members.pop(name, beginning).startswith(beginning):
                return None
        if members.keys() != {"name", arguments} or not members[arguments].startswith("{"):
            return None
        name = strict_json.loads(members["name"])
    except ValueError:
        return None
    return (name, members[arguments]) if isinstance(name, str) and name else None


def read_arguments(name: str, text: str) -> NamedCall | None:
    """The call of `name` with the JSON object in a text; None if there is none."""
    text = text.strip(_SPACE)
    try:
        strict_json.spans(text)
    except ValueError:
        return None
    return (name, text) if name else None


def all_read(calls: Sequence[NamedCall | None]) -> list[NamedCall] | None:
    """The calls; None if one is malformed."""
    read = [call for call in calls if call is not None]
    return read if len(read) == len(calls) else None


def value_end(text: str, at: int) -> int:
    """The index of the end of the JSON value at an index. Raises `ValueError` if there is none."""
    try:
        return _DECODER.raw_decode(text, at)[1]
    except RecursionError:
        raise ValueError("nested too deeply") from None
