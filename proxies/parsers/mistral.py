"""Parses the markup of Mistral models.

    [TOOL_CALLS][{"name": …, "arguments": {…}, "id": …}, …]
    [TOOL_CALLS]name[ARGS]{…}[TOOL_CALLS]name[ARGS]{…}

The second is that of tokenizers from version 11 on, which may write `[CALL_ID]` and an id before `[ARGS]`.
"""

import re
from collections.abc import Sequence

from proxies import strict_json
from proxies.parsers.json_calls import all_read, read_arguments, read_object, value_end
from proxies.parsers.tagged import NamedCall, TaggedParser

_HEAD = re.compile(r"\s*([^\[\]{}\s]+)(?:\[CALL_ID\]\w+)?\[ARGS\]\s*")
_NEXT = re.compile(r"\s*(?:\[TOOL_CALLS\]|\Z)")


class MistralParser(TaggedParser):
    """The end of the turn closes the calls. Arguments are JSON."""

    own_think = ("[THINK]", "[/THINK]")
    calls = {"[TOOL_CALLS]": ""}  # noqa: RUF012
    stray = ("[ARGS]", "[CALL_ID]")
    separator = 0

    def read_calls(self, tag: str, body: str) -> Sequence[NamedCall] | None:  # noqa: ARG002
        """See `TaggedParser.read_calls`."""
        return _listed(body) if body.lstrip().startswith("[") else _named(body)


def _listed(body: str) -> Sequence[NamedCall] | None:
    try:
        objects = strict_json.elements(body)
    except ValueError:
        return None
    return all_read([read_object(each, optional={"id": '"'}) for each in objects])


def _named(body: str) -> Sequence[NamedCall] | None:
    calls = []
    at = 0
    while at < len(body):
        head = _HEAD.match(body, at)
        if head is None:
            return None
        try:
            end = value_end(body, head.end())
        except ValueError:
            return None
        following = _NEXT.match(body, end)
        if following is None:
            return None
        calls.append(read_arguments(head[1], body[head.end() : end]))
        at = following.end()
    # A tag behind which nothing comes opened a call that was cut off.
    return None if body.endswith("[TOOL_CALLS]") else all_read(calls)
