"""HTTP/1 as clients really speak it: offers of HTTP/2 that come with a body, heads that never end."""

import asyncio
import re

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_PAUSE_S = 0.005
"""Seconds between two pieces of a body that is thrown away, each of which has at most 256 KiB."""
_OFFER = re.compile(rb"\A((?:[^\r\n]+\r\n)+?)upgrade:[ \t]*h2c[ \t]*\r\n", re.IGNORECASE)
"""The beginning of a request that offers HTTP/2; the first group is what comes before the offer."""


def without_offer(data: bytes) -> bytes:
    """The first bytes of a request without its offer of HTTP/2."""
    return _OFFER.sub(rb"\1", data, count=1)


class PlainHttpProtocol(HttpToolsProtocol):
    """Ignores offers of HTTP/2, as a server may (RFC 9110, 7.8). Java's HttpClient makes one by default.

    The parser would take what follows the offer for the other protocol, and the body would be lost. A
    connection whose request has no whole head in time is closed.
    """

    head_s = 60.0
    """Seconds in which a request's head must have come, from its first byte or the connection's beginning."""
    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client connects."""
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has left."""
        self._have_head()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        super().on_message_begin()
        self._have_head()
        self._expect_head()

    def on_headers_complete(self) -> None:
        """The end of a request's head."""
        self._have_head()
        super().on_headers_complete()

    def _expect_head(self) -> None:
        self._late = self.loop.call_later(self.head_s, self.transport.close)

    def _have_head(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def data_received(self, data: bytes) -> None:
        """Bytes of requests. A client that offers HTTP/2 sends the whole head at once."""
        super().data_received(without_offer(data) if b"h2c" in data else data)
        # What is left of a body whose request is already refused is thrown away, since many clients read no
        # answer before they have sent all. Read as fast as it comes, it would keep the loop from others.
        cycle = self.cycle
        if cycle is not None and cycle.response_complete and cycle.more_body:
            self.flow.pause_reading()
            self.loop.call_later(_PAUSE_S, self._go_on)

    def _go_on(self) -> None:
        if not self.transport.is_closing():
            self.flow.resume_reading()
