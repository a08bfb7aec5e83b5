"""Drops connections to the proxy, as a plan says.

Replaces a sandbox's relay (`harnessgym.sandboxes.relay`): accepts the harness's connections, copies bytes to
the proxy's socket and back unchanged, and resets the connections that the plan selects.
"""

import asyncio
import contextlib
import socket
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

from harnessgym.faults.plan import DrawnFault, FaultPlan

PORT = 8078
"""Loopback port of the relay, inside."""
_PIECE = 1 << 16
_RESET = struct.pack("ii", 1, 0)
"""`SO_LINGER` with a time of 0: closing the socket then sends a reset instead of an orderly end."""


class FaultyRelay:
    """Forwards the connections of one command. The plan counts them."""

    port = PORT

    def __init__(self, proxy_socket: Path, plan: FaultPlan, command: Sequence[str]) -> None:
        self._proxy_socket = proxy_socket
        self._plan = plan
        self._command = tuple(command)

    @property
    def env(self) -> Mapping[str, str]:
        """Empty: the harness gets the relay's address in place of the proxy's."""
        return {}

    async def serve(self, listener: socket.socket) -> "FaultyServing":
        """Serves the listener, which it owns, until the returned value is closed."""
        listener.setblocking(False)
        serving = FaultyServing(self)
        serving.server = await asyncio.start_server(serving.accept, sock=listener, backlog=128)
        return serving

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forwards one connection until it ends or the plan drops it."""
        draws = self._plan.decide(self._command, connection=True)
        # An amount of 0 resets before the proxy is reached: it must not see a call that the harness repeats.
        if draws and draws[0].amount == 0:
            self._break(writer, draws[0])
            return
        far_reader, far_writer = await asyncio.open_unix_connection(self._proxy_socket)
        forth = asyncio.create_task(_pump(reader, far_writer))
        try:
            passed = await _pump(far_reader, writer, int(draws[0].amount) if draws else None)
            if draws and passed >= draws[0].amount:
                self._break(writer, draws[0])
        finally:
            forth.cancel()
            await asyncio.gather(forth, return_exceptions=True)
            far_writer.transport.abort()
            writer.close()

    def _break(self, writer: asyncio.StreamWriter, draw: DrawnFault) -> None:
        self._plan.note(draw, self._command, "relay")
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        writer.transport.abort()


class FaultyServing:
    """One listener and its connections."""

    def __init__(self, relay: FaultyRelay) -> None:
        self._relay = relay
        self._open: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self.server: asyncio.Server | None = None

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Starts to forward one connection."""
        task = asyncio.create_task(self._carry(reader, writer))
        self._open[task] = writer
        task.add_done_callback(lambda done: self._open.pop(done, None))

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # One end may close the connection at any time.
        with contextlib.suppress(OSError):
            await self._relay.carry(reader, writer)
        writer.transport.abort()

    def close(self) -> None:
        """Closes the listener and drops its connections."""
        if self.server is not None:
            self.server.close()
        for task, writer in list(self._open.items()):
            writer.transport.abort()
            task.cancel()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limit: int | None = None) -> int:
    """Copies bytes until the end of the stream, or until `limit` bytes. Returns how many were copied."""
    passed = 0
    while limit is None or passed < limit:
        data = await reader.read(_PIECE if limit is None else min(_PIECE, limit - passed))
        if not data:
            if writer.can_write_eof() and not writer.is_closing():
                writer.write_eof()
            break
        writer.write(data)
        await writer.drain()
        passed += len(data)
    return passed
