"""Parses the markup of GLM 4.5 and later. From 4.7 on it is written without the line ends.

<tool_call>name
<arg_key>key</arg_key>
<arg_value>value</arg_value>
</tool_call>
"""

import re
from collections.abc import Sequence

from proxies.parsers.sequence import parts_of
from proxies.parsers.tagged import NamedCall, TaggedParser
from proxies.parsers.typed_arguments import ArgumentReader

_CALL = re.compile(r"\s*([^<>{}\s]+)\s*((?:<arg_key>.*)?)", re.DOTALL)
_ARGUMENT = re.compile(r"\s*<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", re.DOTALL)


class GlmParser(TaggedParser):
    """One call is between two tags. Strings are written as they are, other values as JSON."""

    calls = {"<tool_call>": "</tool_call>"}  # noqa: RUF012

    @classmethod
    def markers(cls) -> tuple[str, ...]:
        """The tag that other grammars with the same tags around calls do not have."""
        return ("<arg_key>",)

    def read_calls(self, tag: str, body: str) -> Sequence[NamedCall] | None:  # noqa: ARG002
        """See `TaggedParser.read_calls`."""
        call = _CALL.fullmatch(body)
        pairs = None if call is None else parts_of(_ARGUMENT, call[2])
        if call is None or pairs is None:
            return None
        arguments = ArgumentReader(self._offered).object(call[1], [(pair[1], pair[2]) for pair in pairs])
        return None if arguments is None else [(call[1], arguments)]
