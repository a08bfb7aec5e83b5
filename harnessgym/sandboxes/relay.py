"""Carries connections from a rollout's own loopback to the proxy's unix socket, or from that to a proxy
elsewhere.

The listener comes from inside the rollout's network namespace, as a file descriptor; the relay accepts on it
from outside. So the rollout reaches the proxy at `http://127.0.0.1:PORT`, and no file, folder or route of
ours is inside. Every connection is a fresh connect to `<folder>/proxy.sock`, retried for a while, so a proxy
may be restarted.
"""

import asyncio
import socket
from pathlib import Path
from urllib.parse import urlsplit

_FIRST_PAUSE_S = 0.01
_LONGEST_PAUSE_S = 0.25
_MOST_CONNECTIONS = 256
"""Of one rollout."""


class SandboxRelay:
    """Forwards to one proxy, at a unix socket or at `http://host:port`.

    `patience_s` is how long a connection waits for a proxy that is not there, `most` how many there may be at
    a time: each takes two descriptors of the node's. Further ones are dropped.
    """

    def __init__(self, proxy: Path | str, patience_s: float = 15.0, *, most: int = _MOST_CONNECTIONS) -> None:
        self._proxy = proxy
        self._patience_s = patience_s
        self.most = most

    async def serve(self, listener: socket.socket) -> "RelayListener":
        """Takes the listener over, until the returned value is closed."""
        listener.setblocking(False)
        listening = RelayListener(self)
        loop = asyncio.get_running_loop()
        listening.server = await loop.create_server(
            lambda: _Downstream(listening), sock=listener, backlog=128
        )
        return listening

    async def connect(self, downstream: "_Downstream") -> "_Upstream":
        """Raises OSError when the proxy stays away for longer than the patience."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._patience_s
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
        """Closes the listener and drops what is still connected."""
        if self.server is not None:
            self.server.close()
        for downstream in list(self.open):
            downstream.drop()


class _Side(asyncio.Protocol):
    """One end of a carried connection: writes what it receives to the other end, at the pace the other end
    takes it.
    """

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
    """The end in the sandbox. It is not read before the proxy has answered the connect."""

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
        if self.transport.is_closing():
            assert upstream.transport is not None
            upstream.transport.close()
            return
        self.other = upstream
        super().data_received(self._early)
        self.transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        """Keeps what comes before the proxy is connected: some event loops read once although they were
        paused.
        """
        if self.other is None:
            self._early += data
        else:
            super().data_received(data)

    def connection_lost(self, error: Exception | None) -> None:
        """A client that is gone takes its end at the proxy along, whatever was still to be written there."""
        self._listening.open.discard(self)
        if self._connecting is not None:
            self._connecting.cancel()
        if self.other is not None and self.other.transport is not None:
            self.other.transport.abort()
        super().connection_lost(error)

    def drop(self) -> None:
        if self.transport is not None:
            self.transport.abort()
