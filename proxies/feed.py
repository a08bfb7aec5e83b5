"""Sampled tokens to visible deltas, at a pace: the first at once, the rest joined for up to 20 ms.

Parsing in larger pieces is cheaper and gives the same answer. Of an answer that nobody streams only the whole is parsed.
"""

import asyncio
from collections.abc import Sequence

from harnessgym.message import Message
from proxies.call import Call
from proxies.parser import Parser

COALESCE_S = 0.02


class Feed:
    """Feeds one call's parser and publishes what it says."""

    def __init__(self, call: Call, parser: Parser) -> None:
        self._call, self._parser = call, parser
        self._pending: list[int] = []
        self._timer: asyncio.TimerHandle | None = None
        self._begun = False

    def add(self, ids: Sequence[int]) -> None:
        """Take newly sampled tokens."""
        self._pending.extend(ids)
        if not self._call.request.stream or not self._pending or self._timer is not None:
            return
        if self._begun:
            self._timer = asyncio.get_running_loop().call_later(COALESCE_S, self._flush)
        else:
            self._begun = True
            self._flush()

    def finish(self) -> Message:
        """The whole answer; everything it says is published."""
        self._flush()
        self._call.publish(self._parser.flush())
        return self._parser.finish()

    def close(self) -> None:
        """Publish no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _flush(self) -> None:
        self.close()
        if self._pending:
            pending, self._pending = self._pending, []
            self._call.publish(self._parser.feed(pending))
