"""A small HTTP/1.1 client for engine workers.

General clients cost 1 ms of processor time per request and 0.1 ms per streamed piece; a whole proxy call
should cost 3 ms. This one has what an engine needs: pooled connections over TCP or a unix socket, a JSON body
out, a streamed body in.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import cast
from urllib.parse import urlsplit

import httptools

from harnessgym.engine_timeouts import EngineTimeouts
from harnessgym.errors import ConfigError, UpstreamLost, UpstreamSilent

_CONNECT_S = 5.0
_LAST_LOOK_S = 0.1


@dataclass(frozen=True, slots=True)
class Greeting:
    """A request that is sent first on every new connection, to recognise a server that was restarted."""

    path: str
    check: Callable[[int, bytes], None]
    """Checks status and body of the response; raises `UpstreamLost` for a server that must not be used."""


class HttpClient:
    """Requests to one server, `http://host:port[/prefix]` or `unix:/path/to/socket`.

    ```python
    async with client.request("POST", "/v1/completions", body) as response:
        async for piece in response.pieces():
            ...
    ```

    A server has `timeouts.first_token_s` from the request to the first byte of the response's body, and
    `timeouts.idle_s` from each piece of it to the next. Then the connection is closed and `UpstreamSilent`
    raised.
    """

    def __init__(
        self,
        address: str,
        *,
        connect_s: float = _CONNECT_S,
        greeting: Greeting | None = None,
        timeouts: EngineTimeouts | None = None,
    ) -> None:
        self.address = address
        self.timeouts = timeouts or EngineTimeouts()
        self._connect_s = connect_s
        self._greeting = greeting
        self._idle: list[_Connection] = []
        self._path, self._host, self._port, self._prefix = _parse_address(address)

    @asynccontextmanager
    async def request(self, method: str, path: str, body: bytes = b"") -> AsyncIterator["Response"]:
        """Send a request and wait for the response's head. Raises `UpstreamLost` if the server is gone or
        silent.
        """
        head = (
            f"{method} {self._prefix}{path} HTTP/1.1\r\nhost: {self._host}\r\n"
            "content-type: application/json\r\n"
        )
        connection = await self._exchange((f"{head}content-length: {len(body)}\r\n\r\n".encode(), body))
        try:
            yield Response(connection)
        finally:
            if connection.reusable:
                self._idle.append(connection)
            else:
                connection.close()

    async def answers(self, path: str) -> bool:
        """Whether GET of a path is answered with status 200 within `timeouts.probe_s`."""
        try:
            async with asyncio.timeout(self.timeouts.probe_s), self.request("GET", path) as response:
                await response.body()
                return response.status == 200
        except (UpstreamLost, TimeoutError):
            return False

    async def _exchange(self, message: tuple[bytes, bytes]) -> "_Connection":
        """Send a request on an idle connection or a new one; returns when the response's head has come."""
        # A server may close an idle connection at the moment of the request. That is safe to repeat if no
        # byte of a response came, and if the server was not silent: then it may be at work on the request.
        while self._idle:
            connection = self._idle.pop()
            if connection.open:
                try:
                    return await self._send(connection, message)
                except UpstreamSilent:
                    raise
                except UpstreamLost:
                    if connection.answered:
                        raise
        return await self._send(await self._greet(), message)

    async def _greet(self) -> "_Connection":
        """A new connection whose server passed the greeting's check."""
        connection = await self._connect()
        if self._greeting is None:
            return connection
        head = (
            f"GET {self._prefix}{self._greeting.path} HTTP/1.1\r\nhost: {self._host}\r\n"
            "content-length: 0\r\n\r\n"
        )
        await self._send(connection, (head.encode(), b""))
        try:
            self._greeting.check(connection.status, await Response(connection).body())
        except BaseException:
            connection.close()
            raise
        if connection.reusable:
            return connection
        connection.close()
        return await self._connect()

    async def _send(self, connection: "_Connection", message: tuple[bytes, bytes]) -> "_Connection":
        connection.send(message, self.timeouts)
        try:
            await connection.head()
        except BaseException:
            connection.close()
            raise
        return connection

    async def _connect(self) -> "_Connection":
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_s):
                make = partial(_Connection, self.address)
                if self._path is not None:
                    return (await loop.create_unix_connection(make, self._path))[1]
                return (await loop.create_connection(make, self._host, self._port))[1]
        except (OSError, TimeoutError) as error:
            raise UpstreamLost(
                f"Nothing answers at {self.address} ({error or 'timed out'}). Is the engine running?"
            ) from error

    def close(self) -> None:
        """Close idle connections."""
        for connection in self._idle:
            connection.close()
        self._idle.clear()


class Response:
    """A response whose head has arrived."""

    def __init__(self, connection: "_Connection") -> None:
        self._connection = connection

    @property
    def status(self) -> int:
        """The HTTP status."""
        return self._connection.status

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body as it arrives. Raises `UpstreamLost` if the connection breaks early or is silent."""
        while (piece := await self._connection.read()) is not None:
            yield piece

    async def body(self) -> bytes:
        """The whole body."""
        return b"".join([piece async for piece in self.pieces()])


class _Connection(asyncio.Protocol):
    """One connection, one exchange at a time; also the callbacks of httptools' parser."""

    def __init__(self, address: str) -> None:
        self._address = address
        self.open = False
        self.answered = False
        """Whether any byte of the current response has come."""
        self.status = 0
        self._pieces: list[bytes] = []
        self._complete = True
        self._keep_alive = True
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle
        self._limits = EngineTimeouts()
        self._silence_s = 0.0
        """How long the server may be silent now."""
        self._last_data_at = 0.0
        """Loop time when the request was sent or the last piece of the body came."""

    @property
    def reusable(self) -> bool:
        return self.open and self._complete and self._keep_alive

    def send(self, message: tuple[bytes, bytes], limits: EngineTimeouts) -> None:
        self.answered = False
        self.status = 0
        self._complete = False
        self._limits = limits
        self._silence_s = limits.first_token_s
        self._last_data_at = asyncio.get_running_loop().time()
        self._pieces.clear()
        self._parser = httptools.HttpResponseParser(self)
        self._transport.writelines(message)  # a long prompt is not copied

    async def head(self) -> None:
        while not self.status:
            await self._wait()

    async def read(self) -> bytes | None:
        """The next piece, None after the last."""
        while not self._pieces and not self._complete:
            await self._wait()
        if not self._pieces:
            return None
        piece = b"".join(self._pieces)
        self._pieces.clear()
        return piece

    def close(self) -> None:
        self._transport.abort()
        self.open = False

    async def _wait(self) -> None:
        if not self.open:
            raise UpstreamLost("The engine closed the connection before its answer was complete.")
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        self._timer = loop.call_at(self._last_data_at + self._silence_s, self._check_silence, self._waiter)
        try:
            await self._waiter
        finally:
            self._timer.cancel()

    def _check_silence(self, waiter: "asyncio.Future[None]", *, again: bool = False) -> None:
        """Fail the wait with `UpstreamSilent`: the server has sent nothing for `_silence_s`."""
        if waiter.done():
            return
        # If this process itself was stopped or short of processor time, the timer may fire before the loop
        # has read bytes that arrived long ago. So check once more a moment later.
        if not again:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(_LAST_LOOK_S, partial(self._check_silence, waiter, again=True))
            return
        self.close()
        waiter.set_exception(
            UpstreamSilent(
                f"The engine at {self._address} has sent nothing for {self._silence_s:g} s. Is it stopped or "
                "stuck? If it only needs longer, raise first_token_s or idle_s."
            )
        )

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass
        self.open = True

    def data_received(self, data: bytes) -> None:
        self.answered = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.close()
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self.open = False
        self._wake()

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        self._pieces.append(body)
        self._last_data_at = asyncio.get_running_loop().time()
        self._silence_s = self._limits.idle_s

    def on_message_complete(self) -> None:
        self._complete, self._keep_alive = True, self._parser.should_keep_alive()


def _parse_address(address: str) -> tuple[str | None, str, int, str]:
    """Unix socket path if any, host, port, path prefix."""
    if address.startswith("unix:"):
        return address.removeprefix("unix:"), "localhost", 0, ""
    url = urlsplit(address)
    if url.scheme != "http" or url.hostname is None:
        raise ConfigError(f"{address!r} is not an engine's address: give `http://host:port` or `unix:/path`.")
    return None, url.hostname, url.port or 80, url.path.rstrip("/")
