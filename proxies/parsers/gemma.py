"""Parses the tool calls of Gemma 4 and of FunctionGemma, which is a Gemma 3.

<|tool_call>call:name{key:<|"|>text<|"|>,other:[1,true]}<tool_call|>
<start_function_call>call:name{key:<escape>text<escape>}<end_function_call>
"""

import re
from collections.abc import Sequence

from proxies import strict_json
from proxies.parsers.literal_values import ValueReader
from proxies.parsers.tagged import NamedCall, TaggedParser

_HEAD = re.compile(r"\s*call:([^\s{}:]+)\{")
_KEY = re.compile(r"[^\s{}\[\],:<>]+")
_QUOTES = {"<|tool_call>": '<|"|>', "<start_function_call>": "<escape>"}


class GemmaParser(TaggedParser):
    """One call is between two tags. Strings are between two equal tokens and have no escapes."""

    own_think = ("<|channel>thought", "<channel|>")
    calls = {  # noqa: RUF012
        "<|tool_call>": "<tool_call|>",
        "<start_function_call>": "<end_function_call>",
    }
    separator = 0

    def read_calls(self, tag: str, body: str) -> Sequence[NamedCall] | None:
        """See `TaggedParser.read_calls`."""
        reader = _GemmaReader(body, _QUOTES[tag])
        head = reader.match(_HEAD)
        if head is None:
            return None
        try:
            arguments = reader.object()
            reader.skip()
            strict_json.loads(arguments)
        except ValueError:
            return None
        return [(head[1], arguments)] if reader.at == len(body) else None


class _GemmaReader(ValueReader):
    def __init__(self, text: str, quote: str) -> None:
        super().__init__(text)
        self._quote = quote

    def string(self) -> str | None:
        """See `ValueReader.string`."""
        if not self.take(self._quote):
            return None
        end = self.text.find(self._quote, self.at)
        if end < 0:
            raise ValueError("a string does not end")
        string = self.text[self.at : end]
        self.at = end + len(self._quote)
        return string

    def key(self) -> str:
        """See `ValueReader.key`: bare or a string."""
        string = self.string()
        key = self.match(_KEY) if string is None else None
        if string is None and key is None:
            raise ValueError("not a key")
        return key[0] if key is not None else string or ""
