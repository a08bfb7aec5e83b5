"""Turns sampled tokens into visible deltas, at most once every 20 ms.

Parsing larger pieces is cheaper and gives the same answer. An answer that is not streamed is parsed once, at
its end.
"""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import replace

from harnessgym.message import Message
from proxies.call import Call
from proxies.dialect import TextDelta
from proxies.language import ParsedDelta, Parser

COALESCE_S = 0.02


class TokenFeed:
    """Feeds one call's parser and publishes its deltas."""

    def __init__(self, call: Call, parser: Parser) -> None:
        self._call = call
        self._parser = parser
        self._stop = _StopText(call.sampling.stop)
        self._pending: list[int] = []
        self._timer: asyncio.TimerHandle | None = None
        self._shown_at = -math.inf
        """Loop time of the last publication."""

    @property
    def stop_sequence(self) -> str | None:
        """The stop string that ended the answer, if one did."""
        return self._stop.matched

    @property
    def reasoning_tokens(self) -> int:
        """How many of the tokens parsed so far are reasoning."""
        return self._parser.reasoning_tokens

    @property
    def unparsed(self) -> int:
        """How many pieces of markup so far are malformed, and were given back as text."""
        return self._parser.unparsed

    def add(self, ids: Sequence[int]) -> None:
        """Add newly sampled tokens."""
        self._pending.extend(ids)
        if not self._call.request.stream or not self._pending or self._timer is not None:
            return
        loop = asyncio.get_running_loop()
        wait = self._shown_at + COALESCE_S - loop.time()
        if wait > 0:
            self._timer = loop.call_later(wait, self._flush)
        else:
            self._flush()

    def finish(self) -> Message:
        """The whole answer. Publishes the deltas that are left."""
        self._flush()
        self._publish(self._parser.flush())
        if rest := self._stop.flush():
            self._call.publish([TextDelta(rest)])
        message = self._parser.finish()
        return replace(message, content=self._stop.cut(message.content))

    def close(self) -> None:
        """Publish nothing more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _flush(self) -> None:
        self.close()
        if self._pending:
            pending = self._pending
            self._pending = []
            self._shown_at = asyncio.get_running_loop().time()
            self._publish(self._parser.feed(pending))

    def _publish(self, deltas: Sequence[ParsedDelta]) -> None:
        shown = [
            TextDelta(self._stop.feed(delta.text)) if isinstance(delta, TextDelta) else delta
            for delta in deltas
        ]
        self._call.publish([delta for delta in shown if not isinstance(delta, TextDelta) or delta.text])


class _StopText:
    """Cuts text at the first stop string, which clients do not see. Text that may be the start of one is held
    back.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [stop for stop in stops if stop]
        self._hold = max((len(stop) - 1 for stop in self._stops), default=0)
        self._held = ""
        self._stopped = False
        self.matched: str | None = None
        """The stop string that ended the text."""

    def feed(self, text: str) -> str:
        """The new text that can be shown."""
        if not self._hold and not self._stops:
            return text
        if self._stopped:
            return ""
        whole = self._held + text
        cut = self.cut(whole)
        self._stopped = len(cut) < len(whole)
        keep = 0 if self._stopped else self._hold
        shown = len(cut) - keep if len(cut) > keep else 0
        self._held = cut[shown:]
        return cut[:shown]

    def flush(self) -> str:
        """The text that was held back, once no more comes."""
        held = self._held
        self._held = ""
        return held

    def cut(self, text: str) -> str:
        """The text before the first stop string in it."""
        ends = [(at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if not ends:
            return text
        end, self.matched = min(ends)
        return text[:end]
