"""Parses the markup of DeepSeek V3, R1 and V3.1.

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>name
    ```json
    {…}
    ```<｜tool▁call▁end｜><｜tool▁calls▁end｜>

V3.1 has neither the word nor the fence: `<｜tool▁call▁begin｜>name<｜tool▁sep｜>{…}<｜tool▁call▁end｜>`.
"""

# ruff: noqa: RUF001, RUF002 - the vertical lines of these tags are full-width

import re
from collections.abc import Sequence

from proxies.parsers.json_calls import all_read, read_arguments
from proxies.parsers.sequence import parts_of
from proxies.parsers.tagged import NamedCall, TaggedParser

_CALL = re.compile(r"\s*<｜tool▁call▁begin｜>([^<>\n]+)<｜tool▁sep｜>(.*?)<｜tool▁call▁end｜>", re.DOTALL)
_FENCED = re.compile(r"([^<>\n{]+)\n```json\n(.*)\n```\s*", re.DOTALL)


class DeepseekParser(TaggedParser):
    """All calls are between two tags. Arguments are JSON."""

    calls = {"<｜tool▁calls▁begin｜>": "<｜tool▁calls▁end｜>"}  # noqa: RUF012
    stray = ("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>")
    separator = 0

    def read_calls(self, tag: str, body: str) -> Sequence[NamedCall] | None:  # noqa: ARG002
        """See `TaggedParser.read_calls`."""
        parts = parts_of(_CALL, body)
        return None if parts is None else all_read([_call(part[1], part[2]) for part in parts])


def _call(head: str, body: str) -> NamedCall | None:
    fenced = _FENCED.fullmatch(body)
    if fenced is None:
        return read_arguments(head, body)
    return read_arguments(fenced[1], fenced[2]) if head == "function" else None
