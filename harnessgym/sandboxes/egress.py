"""An HTTP forward proxy that limits a setup phase to a list of hosts.

A sandbox has no network, not even during setup. The node serves this proxy on a listener on the sandbox's own
loopback, and the usual environment variables name it. A setup command uses CONNECT (for TLS, which is passed
on unopened) or an absolute URL. The node looks the name up, checks the name and every address against the
list, connects to a checked address, and records every attempt. A refused request gets a 403 and a sentence.
When the command ends, the listener is closed and every connection is dropped.

The list names hosts, not what they serve: if a listed host also serves other sites, those can be reached too.
"""

import asyncio
import contextlib
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from urllib.parse import urlsplit

import h11

from harnessgym.sandboxes.hosts import HostList, literal, split

PORT = 8079
"""Loopback port of the setup proxy, inside."""
_PIECE = 1 << 16
_HEAD_S = 30.0
_CONNECT_S = 30.0
_MOST_CONNECTIONS = 256
_MOST_ATTEMPTS = 10_000
_OWN = ("localhost", "127.0.0.1", "::1")
_NOT_PASSED_ON = frozenset(
    {b"host", b"connection", b"proxy-connection", b"proxy-authorization", b"keep-alive", b"upgrade", b"te"}
)


@dataclass(slots=True)
class ConnectionAttempt:
    """One connection that a setup command asked for."""

    host: str
    port: int
    allowed: bool
    reason: str = ""
    """Why it was refused or failed; empty if it was connected."""
    sent: int = 0
    """Bytes to the host."""
    received: int = 0
    """Bytes from the host."""


class RequestRefused(Exception):
    """A request that is refused. The client gets it as an answer; it never leaves this module."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status
        self.sentence = sentence


class Egress:
    """Serves the hosts of a list (`harnessgym.sandboxes.hosts`). Raises TaskError for a bad list."""

    port = PORT

    def __init__(self, hosts: Sequence[str]) -> None:
        self.hosts = HostList(hosts)
        self.attempts: list[ConnectionAttempt] = []
        """The first 10,000 attempts, in order."""

    @property
    def env(self) -> Mapping[str, str]:
        """Environment variables that name the proxy.

        Programs connect directly to the sandbox's own loopback, unless the list names it.
        """
        url = f"http://127.0.0.1:{self.port}"
        direct = ",".join(host for host in _OWN if not self._listed(host))
        names = {"http_proxy": url, "https_proxy": url, "no_proxy": direct}
        return {
            **names,
            **{name.upper(): value for name, value in names.items()},
            "SSL_CERT_DIR": "/etc/ssl/certs",
        }

    async def serve(self, listener: socket.socket) -> "EgressListener":
        """Serves the listener, which it owns, until the returned value is closed."""
        listener.setblocking(False)
        serving = EgressListener(self)
        serving.server = await asyncio.start_server(serving.accept, sock=listener, backlog=128)
        return serving

    def _listed(self, host: str) -> bool:
        address = literal(host)
        return any(
            entry.names(host) if address is None else entry.holds(address) for entry in self.hosts.entries
        )

    async def connect(self, attempt: ConnectionAttempt) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connects to an address that the list allows. Raises RequestRefused."""
        # Connect to the checked addresses, never to the name: a second look-up could give another address.
        tried = ""
        for address in await self._addresses(attempt.host, attempt.port):
            try:
                async with asyncio.timeout(_CONNECT_S):
                    return await asyncio.open_connection(address, attempt.port)
            except (OSError, TimeoutError) as error:
                tried = f"{attempt.host}:{attempt.port} cannot be reached: {str(error) or 'no answer'}."
        raise RequestRefused(502, tried)

    async def _addresses(self, host: str, port: int) -> list[str]:
        """Returns the addresses of a host that the list allows. Raises RequestRefused if there are none."""
        address = literal(host)
        if address is not None:
            if not self.hosts.holds(address, port):
                raise RequestRefused(
                    403, f"{host}:{port} is not on the list of hosts that this setup may reach."
                )
            return [host]
        if not self.hosts.names(host, port):
            raise RequestRefused(403, f"{host}:{port} is not on the list of hosts that this setup may reach.")
        try:
            address_infos = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise RequestRefused(502, f"{host} cannot be looked up: {error.strerror or error}.") from error
        addresses = list(dict.fromkeys(str(each[4][0]) for each in address_infos))
        admitted = [each for each in addresses if self.hosts.admits(ip_address(each), port)]
        if not admitted:
            raise RequestRefused(
                403,
                f"{host} stands for {', '.join(addresses)}, which is not public and not on the list itself.",
            )
        return admitted


class EgressListener:
    """One listener and its connections."""

    def __init__(self, egress: Egress) -> None:
        self._egress = egress
        self._open: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self.server: asyncio.Server | None = None

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Starts to serve one connection; drops it if 256 are open."""
        if len(self._open) >= _MOST_CONNECTIONS:
            writer.transport.abort()
            return
        task = asyncio.create_task(self._serve(reader, writer))
        self._open[task] = writer
        task.add_done_callback(lambda done: self._open.pop(done, None))

    def close(self) -> None:
        """Closes the listener and drops its connections."""
        if self.server is not None:
            self.server.close()
        for task, writer in list(self._open.items()):
            writer.transport.abort()
            task.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._answer(reader, writer)
        except RequestRefused as refused:
            text = f"{refused.sentence}\n".encode()
            head = f"HTTP/1.1 {refused.status} Refused\r\ncontent-type: text/plain\r\nconnection: close\r\n"
            writer.write(f"{head}content-length: {len(text)}\r\n\r\n".encode() + text)
            with contextlib.suppress(OSError):
                await writer.drain()
            writer.close()
        except (OSError, TimeoutError, h11.ProtocolError, asyncio.IncompleteReadError):
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        wire = h11.Connection(h11.SERVER)
        async with asyncio.timeout(_HEAD_S):
            request = await _next(wire, reader)
        if not isinstance(request, h11.Request):
            raise RequestRefused(400, "This is no request.")
        tunnel = request.method == b"CONNECT"
        attempt = self._attempt(request.target.decode(), tunnel=tunnel)
        try:
            far_reader, far_writer = await self._egress.connect(attempt)
        except RequestRefused as refused:
            attempt.reason = refused.sentence
            attempt.allowed = refused.status != 403
            raise
        back = asyncio.create_task(_pump(far_reader, writer, attempt, "received"))
        try:
            if tunnel:
                writer.write(b"HTTP/1.1 200 Connected\r\n\r\n")
                # The client may send its first bytes with the CONNECT; h11 has read them already.
                far_writer.write(wire.trailing_data[0])
                attempt.sent += len(wire.trailing_data[0])
                await _pump(reader, far_writer, attempt, "sent")
            else:
                await _pass_on(request, wire, reader, far_writer, attempt)
            await back
        finally:
            back.cancel()
            far_writer.transport.abort()
            writer.close()
            await asyncio.gather(back, return_exceptions=True)

    def _attempt(self, target: str, *, tunnel: bool) -> ConnectionAttempt:
        """Parses and records what a request asks for. Raises RequestRefused if it cannot be parsed."""
        try:
            if tunnel:
                host, port = split(target)
            else:
                url = urlsplit(target)
                host, port = url.hostname or "", url.port or (80 if url.scheme == "http" else None)
            name = host.lower().removesuffix(".").encode("idna").decode() if literal(host) is None else host
        except (ValueError, UnicodeError):
            name = ""
            port = None
        if not name or port is None:
            raise RequestRefused(
                400,
                f"{target[:200]!r} is not understood. Ask with CONNECT host:port, or with a whole http:// "
                "address.",
            )
        attempt = ConnectionAttempt(name, port, allowed=True)
        if len(self._egress.attempts) < _MOST_ATTEMPTS:
            self._egress.attempts.append(attempt)
        return attempt


async def _next(wire: h11.Connection, reader: asyncio.StreamReader) -> h11.Event | None:
    """Reads the next event of a request; None if what follows does not belong to it."""
    while (event := wire.next_event()) is h11.NEED_DATA:
        wire.receive_data(await reader.read(_PIECE))
    return event if isinstance(event, h11.Event) else None


async def _pass_on(
    request: h11.Request,
    wire: h11.Connection,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    attempt: ConnectionAttempt,
) -> None:
    """Sends this one request, in the form that servers expect, to the checked host, and nothing after it."""
    url = urlsplit(request.target.decode())
    path = (url.path or "/") + (f"?{url.query}" if url.query else "")
    # Host comes from the checked URL and the connection closes after the answer: a client could otherwise
    # name another site in its own Host header, or send a second request that was not checked.
    kept = [(name, value) for name, value in request.headers if name not in _NOT_PASSED_ON]
    host = [(b"host", url.netloc.rpartition("@")[2].encode()), (b"connection", b"close")]
    far = h11.Connection(h11.CLIENT)
    event: h11.Event | None = h11.Request(method=request.method, target=path, headers=[*host, *kept])
    while isinstance(event, (h11.Request, h11.Data, h11.EndOfMessage)):
        data = far.send(event) or b""
        attempt.sent += len(data)
        writer.write(data)
        await writer.drain()
        if isinstance(event, h11.EndOfMessage):
            return
        event = await _next(wire, reader)


async def _pump(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, attempt: ConnectionAttempt, count: str
) -> None:
    """Copies bytes until the end of the stream, then ends the other side's stream."""
    while data := await reader.read(_PIECE):
        setattr(attempt, count, getattr(attempt, count) + len(data))
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof() and not writer.is_closing():
        writer.write_eof()
