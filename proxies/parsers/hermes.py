"""Parses Hermes markup, which Qwen 2.5 and Qwen 3 write too.

<think>…</think>text<tool_call>{"name": …, "arguments": {…}}</tool_call>
"""

from collections.abc import Sequence

from harnessgym.message import ToolCall
from proxies.parsers.json_calls import read_object
from proxies.parsers.tagged import NamedCall, TaggedParser


class HermesParser(TaggedParser):
    """One call, a JSON object with a name and arguments, is between two tags."""

    calls = {"<tool_call>": "</tool_call>"}  # noqa: RUF012

    def read_calls(self, tag: str, body: str) -> Sequence[NamedCall] | None:  # noqa: ARG002
        """See `TaggedParser.read_calls`."""
        call = read_object(body)
        return None if call is None else [call]


def read_call(body: str, call_id: str) -> ToolCall | None:
    """The call in the body of a `<tool_call>`; None if it is malformed.

    The body must be a JSON object with exactly `name` and `arguments`, an object. The call keeps the
    arguments as they were written.
    """
    call = read_object(body)
    return None if call is None else ToolCall(call_id, *call)
