"""One ASGI request: its body, its response, and whether the client is still connected."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress

from starlette.types import Message, Receive, Scope, Send

_ROOM = 1 << 16
"""Bytes that the server takes without waiting for the client."""


class Disconnected(Exception):
    """The client closed the connection."""


class BodyTooLarge(Exception):
    """The request's body exceeds the limit."""


class BodyTooSlow(Exception):
    """The request's body does not arrive."""


class Connection:
    """Reads a request and writes its response."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, wait_s: float) -> None:
        """`wait_s` is the time in which the client must have sent its body, and read what is sent to it."""
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        """Names are lower case."""
        self.query: bytes = scope["query_string"]
        # HTTP/1.0 has no chunks, so a response is sent as a whole.
        self._held: list[bytes] | None = [] if scope.get("http_version") == "1.0" else None
        self._start: Message | None = None
        self.closed = False
        self.last = False
        """Whether the connection is closed behind a whole response."""
        self._wait_s = wait_s
        self._receive = receive
        self._send = send
        self._watcher: asyncio.Task[None] | None = None

    async def body(self, limit: int) -> bytes:
        """The request's body.

        Raises `BodyTooLarge` as soon as it is known to exceed `limit` bytes, `BodyTooSlow` if it does not
        arrive in time.
        """
        # Refuse by the announced length, before a byte is read; but clients may send more than announced, or
        # none (chunked), so count as well.
        announced = self.headers.get("content-length", "0")
        if announced.isdecimal() and int(announced) > limit:
            raise BodyTooLarge
        try:
            async with asyncio.timeout(self._wait_s):
                return await self._pieces(limit)
        except TimeoutError:
            raise BodyTooSlow from None

    async def _pieces(self, limit: int) -> bytes:
        pieces = []
        size = 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                self.closed = True
                raise Disconnected
            pieces.append(message.get("body", b""))
            size += len(pieces[-1])
            if size > limit:
                raise BodyTooLarge
            if not message.get("more_body", False):
                return b"".join(pieces)

    def watch(self, wake: asyncio.Event) -> None:
        """Set an event as soon as the client disconnects."""
        self._watcher = asyncio.create_task(self._watch(wake))

    async def start(self, status: int, headers: Mapping[str, str]) -> None:
        """Begin the response."""
        encoded = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
        start: Message = {"type": "http.response.start", "status": status, "headers": encoded}
        if self._held is None or "content-length" in headers:
            self._held = None
            await self._send(start)
        else:
            self._start = start

    async def write(self, data: bytes, *, last: bool = False) -> None:
        """Write more of the response's body.

        Raises `Disconnected` if the client has gone, or does not read in time.
        """
        if self.closed:
            raise Disconnected
        if self._held is not None:
            self._held.append(data)
            if not last:
                return
            assert self._start is not None
            data = b"".join(self._held)
            self._start["headers"].append((b"content-length", str(len(data)).encode()))
            await self._send(self._start)
        try:
            async with asyncio.timeout(self._wait_s):
                # The server waits for room before it sends, not afterwards, so a large last piece would count
                # as written with nobody reading it. The empty one behind it waits.
                if last and len(data) > _ROOM:
                    await self._send({"type": "http.response.body", "body": data, "more_body": True})
                    data = b""
                await self._send({"type": "http.response.body", "body": data, "more_body": not last})
        except TimeoutError:
            self.closed = True
        if self.closed:
            raise Disconnected

    async def respond(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """Send a whole response."""
        closing = {"connection": "close"} if self.last else {}
        await self.start(status, {**headers, **closing, "content-length": str(len(body))})
        await self.write(body, last=True)

    async def release(self) -> None:
        """Stop watching."""
        if self._watcher is not None:
            self._watcher.cancel()
            with suppress(asyncio.CancelledError):
                await self._watcher

    async def _watch(self, wake: asyncio.Event) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.closed = True
        wake.set()
