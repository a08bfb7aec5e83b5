"""Parses the markup of DeepSeek V3, R1 and V3.1.

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>name
    ```json
    {…}
    ```<｜tool▁call▁end｜><｜tool▁calls▁end｜>

V3.1 has neither the word nor the fence: `<｜tool▁call▁begin｜>name<｜tool▁sep｜>{…}<｜tool▁call▁end｜>`.
"""

# ruff: noqa: RUF001, RUF002 - the vertical lines of these tags are full-width

import re

from proxies.parsers.json_calls import ListedCallsParser, read_arguments
from proxies.parsers.tagged import NamedCall

_FENCED = re.compile(r"([^<>\n{]+)\n```json\n(.*)\n```\s*", re.DOTALL)


class DeepseekParser(ListedCallsParser):
    """All calls are between two tags. Arguments are JSON."""

    calls = {"<｜tool▁calls▁begin｜>": "<｜tool▁calls▁end｜>"}  # noqa: RUF012
    stray = ("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>")
    call = re.compile(r"\s*<｜tool▁call▁begin｜>([^<>\n]+)<｜tool▁sep｜>(.*?)<｜tool▁call▁end｜>", re.DOTALL)

    def read_call(self, head: str, arguments: str) -> NamedCall | None:
        """See `ListedCallsParser.read_call`."""
        fenced = _FENCED.fullmatch(arguments)
        if fenced is None:
            return read_arguments(head, arguments)
        return read_arguments(fenced[1], fenced[2]) if head == "function" else None
