"""Parses the markup of Kimi K2.

<|tool_calls_section_begin|><|tool_call_begin|>functions.name:0<|tool_call_argument_begin|>{…}
<|tool_call_end|><|tool_calls_section_end|>
"""

import re

from proxies.parsers.json_calls import ListedCallsParser, read_arguments
from proxies.parsers.tagged import NamedCall

_NAME = re.compile(r"functions\.(.+):\d+")


class KimiParser(ListedCallsParser):
    """All calls are between two tags. A call has an id, `functions.NAME:INDEX`, and arguments in JSON."""

    calls = {"<|tool_calls_section_begin|>": "<|tool_calls_section_end|>"}  # noqa: RUF012
    stray = ("<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>")
    call = re.compile(
        r"\s*<\|tool_call_begin\|>\s*([^<>\s]+)\s*<\|tool_call_argument_begin\|>(.*?)<\|tool_call_end\|>",
        re.DOTALL,
    )

    def read_call(self, head: str, arguments: str) -> NamedCall | None:
        """See `ListedCallsParser.read_call`."""
        name = _NAME.fullmatch(head)
        return None if name is None else read_arguments(name[1], arguments)
