"""Parses the markup of Qwen3-Coder, Qwen3.5 and later, and Nemotron 3.

<tool_call>
<function=name>
<parameter=key>
value
</parameter>
</function>
</tool_call>
"""

import re
from collections.abc import Sequence

from proxies.parsers.sequence import parts_of
from proxies.parsers.tagged import NamedCall, TaggedParser
from proxies.parsers.typed_arguments import PYTHON_WORDS, ArgumentReader

_FUNCTION = re.compile(r"\s*<function=([^<>\n]+)>(.*)</function>\s*", re.DOTALL)
_PARAMETER = re.compile(r"\s*<parameter=([^<>\n]+)>(.*?)</parameter>", re.DOTALL)


class Qwen3CoderParser(TaggedParser):
    """One call is between two tags. A value is on lines of its own: strings as they are, objects and lists
    as JSON, and true, false and null as Python writes them.
    """

    calls = {"<tool_call>": "</tool_call>"}  # noqa: RUF012
    separator = 2

    def read_calls(self, tag: str, body: str) -> Sequence[NamedCall] | None:  # noqa: ARG002
        """See `TaggedParser.read_calls`."""
        function = _FUNCTION.fullmatch(body)
        parameters = None if function is None else parts_of(_PARAMETER, function[2])
        if function is None or parameters is None:
            return None
        written = [(part[1], part[2].removeprefix("\n").removesuffix("\n")) for part in parameters]
        arguments = ArgumentReader(self._offered, PYTHON_WORDS).object(function[1], written)
        return None if arguments is None else [(function[1], arguments)]
