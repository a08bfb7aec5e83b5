"""Parses the markup of MiniMax M2.

<minimax:tool_call>
<invoke name="name">
<parameter name="key">value</parameter>
</invoke>
</minimax:tool_call>
"""

import re
from collections.abc import Sequence

from proxies.parsers.json_calls import all_read
from proxies.parsers.sequence import parts_of
from proxies.parsers.tagged import NamedCall, TaggedParser
from proxies.parsers.typed_arguments import ArgumentReader

_INVOKE = re.compile(r'\s*<invoke name="([^"<>]+)">(.*?)</invoke>', re.DOTALL)
_PARAMETER = re.compile(r'\s*<parameter name="([^"<>]+)">(.*?)</parameter>', re.DOTALL)


class MinimaxParser(TaggedParser):
    """All calls are between two tags. Strings are written as they are, other values as JSON."""

    calls = {"<minimax:tool_call>": "</minimax:tool_call>"}  # noqa: RUF012

    def read_calls(self, tag: str, body: str) -> Sequence[NamedCall] | None:  # noqa: ARG002
        """See `TaggedParser.read_calls`."""
        reader = ArgumentReader(self._offered)
        invokes = parts_of(_INVOKE, body)
        return None if invokes is None else all_read([_call(reader, each[1], each[2]) for each in invokes])


def _call(reader: ArgumentReader, name: str, body: str) -> NamedCall | None:
    parameters = parts_of(_PARAMETER, body)
    if parameters is None:
        return None
    arguments = reader.object(name, [(part[1], part[2]) for part in parameters])
    return None if arguments is None else (name, arguments)
