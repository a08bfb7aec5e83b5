"""A renderer whose long texts take as long as a test wants."""

import threading
from collections.abc import Sequence

from harnessgym.message import Message, ToolSpec
from proxies.renderers.long_texts import LONG, tokenised
from proxies.renderers.template import TemplateRenderer

GATE = threading.Event()
"""Long texts are tokenised when it is set."""
STARTED = threading.Event()
"""Set when the first of them has begun."""


class WaitingRenderer(TemplateRenderer):
    """The template's renderer, whose long texts wait for `GATE`."""

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[int]:
        return tokenised(self.text(messages, tools), self._waiting)

    def _waiting(self, text: str) -> list[int]:
        if len(text) >= LONG:
            STARTED.set()
            assert GATE.wait(30), "nobody opened the gate: the event loop stands still"
        return self._encode(text)
