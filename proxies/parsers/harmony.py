"""Parses harmony, the format of gpt-oss: a turn is several messages, each with a channel.

    <|channel|>analysis<|message|>…<|end|>
    <|start|>assistant<|channel|>commentary to=functions.name <|constrain|>json<|message|>{…}<|call|>
    <|start|>assistant<|channel|>final<|message|>…<|return|>

The analysis is reasoning. Messages to `functions.` are tool calls. The final channel and commentary to nobody
are content. Several messages of a kind are joined by line ends.
"""

import re
from collections.abc import Collection, Sequence

from harnessgym.message import ToolSpec
from proxies.detokenizer import TokenTable
from proxies.parsers.json_calls import read_arguments
from proxies.parsers.tags import Tags
from proxies.parsers.turn import TurnParser

_START, _MESSAGE = "<|start|>", "<|message|>"
_ENDS = ("<|end|>", "<|call|>", "<|return|>")
_HEADER = re.compile(
    r"(?:assistant)?(?: to=(?P<before>[^\s<>]+))?<\|channel\|>(?P<channel>analysis|commentary|final)"
    r"(?: to=(?P<after>[^\s<>]+))?(?:\s*<\|constrain\|>\s*\w+| \w+)?\s*"
)
_LONGEST = 300
"""Characters of the longest header."""
_FUNCTIONS = "functions."


class HarmonyParser(TurnParser):
    """Parses one sampled turn, which begins behind `<|start|>assistant`.

    What is no message with a channel that the format has comes back as text, and so does a call without
    `tools`.
    """

    def __init__(
        self,
        table: TokenTable,
        *,
        call_prefix: str,
        stop_token_ids: Collection[int] = (),
        in_reasoning: bool = False,
        tools: bool = True,
        offered: Sequence[ToolSpec] = (),  # noqa: ARG002 - arguments are JSON
    ) -> None:
        super().__init__(table, call_prefix=call_prefix, stop_token_ids=stop_token_ids, tools=tools)
        self._markup = ""
        """The header of the current message as it was written; None of it is text if the message parses."""
        self._channel = "analysis" if in_reasoning else ""
        """That of the current message: empty in a header, `call` in one to a function, `text` in what is no
        message."""
        self._name = ""
        """The function that the message calls."""
        self._body: list[str] = []
        """Arguments so far."""
        self._said = False
        """Whether the current message has text."""
        if in_reasoning:
            self._reasoned.open(0)

    @classmethod
    def markers(cls) -> tuple[str, ...]:
        """The tokens without which there are no channels."""
        return ("<|channel|>",)

    def _step(self) -> bool:
        return self._step_body() if self._channel else self._step_header()

    def _end(self) -> None:
        rest = self._take_text(len(self._pending))
        if self._channel:
            self._add(rest)
            self._close("")
        elif (self._markup + rest).strip():
            self._reject(self._markup + rest)

    def _step_header(self) -> bool:
        tag, end = Tags.of((_MESSAGE, *_ENDS)).find(self._pending)
        if not tag and end <= _LONGEST:
            return False
        header = self._take_text(end)
        self._markup += header
        if tag != _MESSAGE or end > _LONGEST:
            self._open("text")
            return True
        self._markup += self._take_text(len(tag))
        parts = _HEADER.fullmatch(header.removeprefix(_START))
        recipient = "" if parts is None else parts["before"] or parts["after"] or ""
        if parts is None or (recipient and not recipient.startswith(_FUNCTIONS)):
            self._open("text")
        elif recipient and not self._tools:
            self._open("text", count=False)
        else:
            self._name = recipient.removeprefix(_FUNCTIONS)
            self._open("call" if recipient else parts["channel"])
        return True

    def _open(self, channel: str, *, count: bool = True) -> None:
        self._channel = channel
        self._said = False
        self._body = []
        if channel == "analysis":
            self._reasoned.open(self._at)
        elif channel == "text":
            self.unparsed += count
            self._say(self._markup)
            self._markup = ""

    def _step_body(self) -> bool:
        tag, end = Tags.of((_START, *_ENDS)).find(self._pending)
        self._add(self._take_text(end))
        if not tag:
            return False
        if self._channel == "analysis":
            self._reasoned.close(self._at)
        closing = "" if tag == _START else self._take_text(len(tag))
        self._close(closing)
        return True

    def _add(self, text: str) -> None:
        if self._channel == "call":
            self._body.append(text)
        elif self._channel == "analysis":
            self._emit_reasoning(self._joined(text, self._reasoning))
        else:
            self._say(text)

    def _say(self, text: str) -> None:
        self._emit(self._joined(text, self._content))

    def _joined(self, text: str, before: Sequence[str]) -> str:
        separator = "\n" if text and before and not self._said and self._channel != "text" else ""
        self._said = self._said or bool(text)
        return separator + text

    def _close(self, closing: str) -> None:
        """End the current message."""
        channel, self._channel = self._channel, ""
        markup, self._markup = self._markup, ""
        if channel == "text":
            self._emit(closing)
        elif channel == "call":
            body = "".join(self._body)
            call = read_arguments(self._name, body)
            if call is None:
                self._reject(markup + body + closing)
            else:
                self._emit_call(*call)

    def _reject(self, markup: str) -> None:
        self.unparsed += 1
        self._emit(markup)
