"""Forwards connections from a rollout's own loopback to the proxy, at a unix socket or at a URL.

The listener is opened inside the rollout's network namespace and passed out as a file descriptor; the relay
accepts on it from outside. So the rollout reaches the proxy at `http://127.0.0.1:PORT` without any file,
folder or route of ours inside. Each connection connects to the proxy anew and retries for a while, so the
proxy may be restarted.
"""

import asyncio
import socket
from pathlib import Path
from urllib.parse import urlsplit

_FIRST_PAUSE_S = 0.01
_LONGEST_PAUSE_S = 0.25
_MOST_CONNECTIONS = 256
"""Limit for one rollout."""


class SandboxRelay:
    """Forwards to one proxy, at a unix socket or at `http://host:port`.

    A connection waits up to `max_wait_s` for a proxy that does not listen. At most `most` connections are
    open at a time, because each takes two of the node's descriptors; further ones are dropped.
    """

    def __init__(self, proxy: Path | str, max_wait_s: float = 15.0, *, most: int = _MOST_CONNECTIONS) -> None:
        self._proxy = proxy
        self._max_wait_s = max_wait_s
        self.most = most

    async def serve(self, listener: socket.socket) -> "RelayListener":
        """Serves the listener, which it owns, until the returned value is closed."""
        listener.setblocking(False)
        listening = RelayListener(self)
        loop = asyncio.get_running_loop()
        listening.server = await loop.create_server(
            lambda: _Downstream(listening), sock=listener, backlog=128
        )
        return listening

    async def connect(self, downstream: "_Downstream") -> "_Upstream":
        """Connects to the proxy. Raises OSError if it does not listen within `max_wait_s`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._max_wait_s
        pause = _FIRST_PAUSE_S
        while True:
            try:
                return await self._dial(downstream)
            except (FileNotFoundError, ConnectionRefusedError):
                if loop.time() > deadline:
                    raise
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_S)

    async def _dial(self, downstream: "_Downstream") -> "_Upstream":
        loop = asyncio.get_running_loop()
        if isinstance(self._proxy, Path):
            _, upstream = await loop.create_unix_connection(lambda: _Upstream(downstream), str(self._proxy))
        else:
            at = urlsplit(self._proxy)
            _, upstream = await loop.create_connection(
                lambda: _Upstream(downstream), at.hostname or "127.0.0.1", at.port or 80
            )
        return upstream


class RelayListener:
    """One rollout's listener and its open connections."""

    def __init__(self, relay: SandboxRelay) -> None:
        self.relay = relay
        self.server: asyncio.Server | None = None
        self.open: set[_Downstream] = set()

    def close(self) -> None:
        """Closes the listener and drops its connections."""
        if self.server is not None:
            self.server.close()
        for downstream in list(self.open):
            downstream.drop()


class _Side(asyncio.Protocol):
    """One end of a forwarded connection: writes what it receives to the other end, at that end's pace."""

    other: "_Side | None" = None
    transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.write(data)

    def eof_received(self) -> bool:
        if (
            self.other is not None
            and self.other.transport is not None
            and self.other.transport.can_write_eof()
        ):
            self.other.transport.write_eof()
        # True keeps this end open: a client may close its write side and still wait for the answer.
        return True

    def pause_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002
        if self.other is not None and self.other.transport is not None:
            self.other.transport.close()
        self.other = None


class _Upstream(_Side):
    """The end at the proxy."""

    def __init__(self, downstream: "_Downstream") -> None:
        self.other = downstream


class _Downstream(_Side):
    """The end in the sandbox. It is not read before the proxy is connected."""

    def __init__(self, listening: RelayListener) -> None:
        self._listening = listening
        self._connecting: asyncio.Task[None] | None = None
        self._early = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        assert self.transport is not None
        if len(self._listening.open) >= self._listening.relay.most:
            self.transport.abort()
            return
        self.transport.pause_reading()
        self._listening.open.add(self)
        self._connecting = asyncio.get_running_loop().create_task(self._connect())

    async def _connect(self) -> None:
        assert self.transport is not None
        try:
            upstream = await self._listening.relay.connect(self)
        except OSError:
            self.transport.abort()
            return
        # The client may have left while the proxy was being connected.
        if self.transport.is_closing():
            assert upstream.transport is not None
            upstream.transport.close()
            return
        self.other = upstream
        super().data_received(self._early)
        self.transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        """Forwards data; keeps it until the proxy is connected.

        Some event loops still read once after reading was paused.
        """
        if self.other is None:
            self._early += data
        else:
            super().data_received(data)

    def connection_lost(self, error: Exception | None) -> None:
        """Aborts the proxy's end too, with whatever was still to be written there."""
        # An abort, not a close: the proxy must notice at once that nobody waits for the answer.
        self._listening.open.discard(self)
        if self._connecting is not None:
            self._connecting.cancel()
        if self.other is not None and self.other.transport is not None:
            self.other.transport.abort()
        super().connection_lost(error)

    def drop(self) -> None:
        if self.transport is not None:
            self.transport.abort()
