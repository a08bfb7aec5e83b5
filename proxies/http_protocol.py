"""HTTP/1 as clients really speak it: offers to switch to HTTP/2 that come with a request's body."""

import re

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_OFFER = re.compile(rb"\A((?:[^\r\n]+\r\n)+?)upgrade:[ \t]*h2c[ \t]*\r\n", re.IGNORECASE)
"""The beginning of a request that offers HTTP/2; the first group is what comes before the offer."""


def without_offer(data: bytes) -> bytes:
    """The first bytes of a request without its offer of HTTP/2."""
    return _OFFER.sub(rb"\1", data, count=1)


class PlainHttpProtocol(HttpToolsProtocol):
    """Ignores offers of HTTP/2, as a server may (RFC 9110, 7.8). Java's HttpClient makes one by default.

    The parser would take what follows the offer for the other protocol, and the body would be lost.
    """

    def data_received(self, data: bytes) -> None:
        """Bytes of requests. A client that offers HTTP/2 sends the whole head at once."""
        super().data_received(without_offer(data) if b"h2c" in data else data)
