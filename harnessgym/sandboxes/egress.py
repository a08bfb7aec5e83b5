"""What a setup phase may reach: an HTTP forward proxy that the node serves on a listener inside the sandbox.

A sandbox has no network, and gets none for its setup. A setup command finds a proxy on its own loopback,
takes it from the usual environment variables, and asks it with CONNECT (for TLS, which is passed on unopened)
or an absolute URL. The node looks the name up, checks it and every address it stands for against the list,
connects to an address that it has checked, and writes down every attempt. What is refused gets a 403 and a
sentence. When the command has ended the listener is closed and every connection is dropped, so nothing can be
reached any more.

The list is about hosts, not about what is said to them: whoever may reach a host that serves others as well
reaches those too.
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
    """Why it was refused or failed; empty when it was connected."""
    sent: int = 0
    """Bytes to the host."""
    received: int = 0
    """Bytes from it."""


class RequestRefused(Exception):  # the end of one request, told to its client; never raised to a caller
    """A request that is not carried out."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status
        self.sentence = sentence


class Egress:
    """Serves what `hosts` allows (`harnessgym.sandboxes.hosts`). Raises TaskError when that is no list of
    hosts.
    """

    port = PORT

    def __init__(self, hosts: Sequence[str]) -> None:
        self.hosts = HostList(hosts)
        self.attempts: list[ConnectionAttempt] = []
        """In order; of very many the first ones."""

    @property
    def env(self) -> Mapping[str, str]:
        """What tells programs of the proxy. A sandbox's own loopback is reached directly, unless the list
        names it.
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
        """Takes the listener over, until the returned value is closed."""
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
        """A connection to an address that the list admits. Raises Refused."""
        tried = ""
        for address in await self._addresses(attempt.host, attempt.port):
            try:
                async with asyncio.timeout(_CONNECT_S):
                    return await asyncio.open_connection(address, attempt.port)
            except (OSError, TimeoutError) as error:
                tried = f"{attempt.host}:{attempt.port} cannot be reached: {str(error) or 'no answer'}."
        raise RequestRefused(502, tried)

    async def _addresses(self, host: str, port: int) -> list[str]:
        """What to connect to, all of it checked. Raises Refused."""
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
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise RequestRefused(502, f"{host} cannot be looked up: {error.strerror or error}.") from error
        addresses = list(dict.fromkeys(str(each[4][0]) for each in found))
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
        """Starts to serve one connection; beyond a bound it is dropped."""
        if len(self._open) >= _MOST_CONNECTIONS:
            writer.transport.abort()
            return
        task = asyncio.create_task(self._serve(reader, writer))
        self._open[task] = writer
        task.add_done_callback(lambda done: self._open.pop(done, None))

    def close(self) -> None:
        """Closes the listener and drops what is connected."""
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
        """What a request asks for, written down. Raises Refused when that cannot be made out."""
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
    """The next part of a request; None when what follows is not its business."""
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
    """Sends this one request in the form that servers expect, for the host that was checked, and nothing
    after it.
    """
    url = urlsplit(request.target.decode())
    path = (url.path or "/") + (f"?{url.query}" if url.query else "")
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
    """Carries bytes until their end, and then says so to the other side."""
    while data := await reader.read(_PIECE):
        setattr(attempt, count, getattr(attempt, count) + len(data))
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof() and not writer.is_closing():
        writer.write_eof()
