"""Parses the markup of Kimi K2.

<|tool_calls_section_begin|><|tool_call_begin|>functions.name:0<|tool_call_argument_begin|>{…}
<|tool_call_end|><|tool_calls_section_end|>
"""

import re
from collections.abc import Sequence

from proxies.parsers.json_calls import all_read, read_arguments
from proxies.parsers.sequence import parts_of
from proxies.parsers.tagged import NamedCall, TaggedParser

_CALL = re.compile(
    r"\s*<\|tool_call_begin\|>\s*([^<>\s]+)\s*<\|tool_call_argument_begin\|>(.*?)<\|tool_call_end\|>",
    re.DOTALL,
)
_NAME = re.compile(r"functions\.(.+):\d+")


class KimiParser(TaggedParser):
    """All calls are between two tags. A call has an id, `functions.NAME:INDEX`, and arguments in JSON."""

    calls = {"<|tool_calls_section_begin|>": "<|tool_calls_section_end|>"}  # noqa: RUF012
    stray = ("<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>")
    separator = 0

    def read_calls(self, tag: str, body: str) -> Sequence[NamedCall] | None:  # noqa: ARG002
        """See `TaggedParser.read_calls`."""
        parts = parts_of(_CALL, body)
        return None if parts is None else all_read([_call(part[1], part[2]) for part in parts])


def _call(call_id: str, arguments: str) -> NamedCall | None:
    name = _NAME.fullmatch(call_id)
    return None if name is None else read_arguments(name[1], arguments)
