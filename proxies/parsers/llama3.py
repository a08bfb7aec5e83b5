"""Parses the tool calls of Llama 3: an answer that is JSON, or that is JSON after `<|python_tag|>`.

    {"name": …, "parameters": {…}}

Several calls are separated by semicolons.
"""

import re
from collections.abc import Sequence

from proxies.parsers.json_calls import all_read, read_object, value_end
from proxies.parsers.tagged import NamedCall, TaggedParser

_BEGINNINGS = ('{"name":', '{"type":"function"')
_BETWEEN = re.compile(r"\s*(?:;\s*|\Z)")
_HEAD = 64
"""Characters after which an answer must have shown whether it is a call."""


class Llama3Parser(TaggedParser):
    """The end of the turn closes a call. An object may also have `"type": "function"`."""

    calls = {"<|python_tag|>": ""}  # noqa: RUF012
    separator = 0

    @classmethod
    def markers(cls) -> tuple[str, ...]:
        """None: calls need no tag."""
        return ()

    def begins_call(self, text: str) -> bool | None:
        """See `TaggedParser.begins_call`."""
        head = "".join(text[:_HEAD].split())
        if any(head.startswith(beginning) for beginning in _BEGINNINGS):
            return True
        undecided = len(text) < _HEAD and any(beginning.startswith(head) for beginning in _BEGINNINGS)
        return None if undecided else False

    def read_calls(self, tag: str, body: str) -> Sequence[NamedCall] | None:  # noqa: ARG002
        """See `TaggedParser.read_calls`."""
        objects = []
        at = len(body) - len(body.lstrip())
        try:
            while at < len(body):
                end = value_end(body, at)
                objects.append(body[at:end])
                between = _BETWEEN.match(body, end)
                if between is None:
                    return None
                at = between.end()
        except ValueError:
            return None
        return all_read([_call(each) for each in objects])


def _call(text: str) -> NamedCall | None:
    return read_object(text, "parameters", {"type": '"function"'})
