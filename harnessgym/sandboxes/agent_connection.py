"""The node's connection to the agent in a container: starts commands, opens the workspace and listeners.

The agent connects to a socket of the node that only its container sees. The node removes the socket once the
agent has connected, so nothing listens inside the container for a harness to connect to. If the connection
closes, each side knows that the other is gone.
"""

import asyncio
import contextlib
import os
import socket
import time
from pathlib import Path
from typing import Any

from harnessgym.errors import SandboxError
from harnessgym.sandbox import ExecResult, OnOutput
from harnessgym.sandboxes.agent.wire import (
    HELLO,
    REPLY_SIZE,
    REPORT_SIZE,
    VERSION,
    AgentReply,
    ExecReport,
    ExecRequest,
    Operation,
    pack_order,
    pack_request,
    parse_reply,
    parse_report,
)
from harnessgym.sandboxes.descriptors import readable, stdin_of
from harnessgym.sandboxes.output import Output, PipeReader

SOCKET = "node.sock"
_DEATH_S = 30.0
"""How long the agent may take to kill and collect a command before the sandbox counts as broken."""
_ANSWER_S = 30.0
_LATE_S = 2.0
"""Extra time past a command's timeout before the node itself ends it; its supervisor should end it first."""


class AgentSocket:
    """A folder that holds the socket one agent connects to, and nothing else. The container mounts it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(mode=0o755)
        self._listener = socket.socket(
            socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
        )
        inside = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            # The kernel limits a socket's path to 107 bytes; the path through the descriptor is short.
            self._listener.bind(f"/proc/self/fd/{inside}/{SOCKET}")
            # If the folder belongs to another user, a root without capabilities needs the mode to allow it.
            (folder / SOCKET).chmod(0o666)
            self._listener.listen(1)
        except OSError:
            self._listener.close()
            raise
        finally:
            os.close(inside)

    async def answer(self, timeout_s: float) -> "AgentConnection":
        """Waits for the agent's connection and removes the socket. Raises TimeoutError if none comes."""
        async with asyncio.timeout(timeout_s):
            await readable(self._listener)
        connection, _ = self._listener.accept()
        self.close()
        return AgentConnection(connection)

    def close(self) -> None:
        """Removes the socket."""
        self._listener.close()
        (self.folder / SOCKET).unlink(missing_ok=True)


class AgentConnection:
    """One agent. Its methods raise SandboxError once it is gone."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._control.setblocking(False)
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[int, asyncio.Future[int]] = {}
        self._number = 0
        self.greeted: asyncio.Future[None] = self._loop.create_future()
        self.gone = False
        """Whether the agent is gone, or we have closed the connection."""
        self._frozen_at: float | None = None
        self._frozen_s = 0.0
        self.pid = _peer(control)
        """The agent's process on this machine; 0 when it cannot be seen from here."""
        self._loop.add_reader(control, self._receive)

    @property
    def frozen(self) -> bool:
        """Whether the sandbox is paused. Timeouts do not advance while it is."""
        return self._frozen_at is not None

    @frozen.setter
    def frozen(self, frozen: bool) -> None:
        if self._frozen_at is not None:
            self._frozen_s += time.monotonic() - self._frozen_at
        self._frozen_at = time.monotonic() if frozen else None

    async def root(self, number: int = 0) -> int:
        """Returns a descriptor (O_PATH) of the workspace (0) or of the n-th folder beside it (from 1).

        The caller owns it.
        """
        descriptor = await self._ask("R", number)
        assert descriptor >= 0
        return descriptor

    async def listen(self, port: int) -> socket.socket:
        """Opens a listener on the sandbox's own loopback."""
        return socket.socket(fileno=await self._ask("L", port))

    async def kill_all(self) -> None:
        """Kills every process but the agent at once; returns when they are gone."""
        await self._ask("K")

    async def end(self) -> None:
        """Kills every process, and ends the agent."""
        await self._ask("E")

    async def run(
        self,
        order: ExecRequest,
        *,
        stdin: bytes | None,
        max_output: int,
        on_output: OnOutput | None,
        owner: int | None,
    ) -> ExecResult:
        """Runs a command to its end.

        The user `owner` gets the command's pipes, so that it can open `/dev/stdout` by name.
        """
        outputs = Output("stdout", max_output, on_output), Output("stderr", max_output, on_output)
        body = pack_order(order)
        channel, pipes = self._start(stdin, owner)
        began = time.monotonic()
        drains = [
            PipeReader(pipe, output, lambda: _stop(channel))
            for pipe, output in zip(pipes, outputs, strict=True)
        ]
        try:
            # The command and its children are dead when the report comes, so the pipes hold all its output.
            report, late = await self._follow(channel, body, order.timeout_s)
            for drain in drains:
                drain.finish()
        finally:
            for drain in drains:
                drain.close()
            channel.close()
        if report.kind not in ("exited", "killed"):
            raise SandboxError(
                "The supervisor of a command in a sandbox was killed. Open a new sandbox and run it again."
            )
        timed_out = late or report.timed_out
        return ExecResult(
            exit_code=None if timed_out else report.code,
            signal=report.signal,
            stdout=outputs[0].data,
            stderr=outputs[1].data,
            stdout_truncated=outputs[0].truncated,
            stderr_truncated=outputs[1].truncated,
            timed_out=timed_out,
            wall_s=time.monotonic() - began,
            cpu_s=report.cpu_s,
        )

    def close(self) -> None:
        """Closes the connection, which ends the agent. May be called twice."""
        if self.gone:
            return
        self.gone = True
        self._loop.remove_reader(self._control)
        self._control.close()
        unanswered: list[asyncio.Future[Any]] = [*self._waiting.values(), self.greeted]
        for waiting in unanswered:
            if not waiting.done():
                waiting.set_exception(_connection_lost())
        # Read the exception, or asyncio logs it as never retrieved when nobody awaits the greeting.
        if self.greeted.done() and not self.greeted.cancelled():
            self.greeted.exception()

    def _start(self, stdin: bytes | None, owner: int | None) -> tuple[socket.socket, tuple[int, int]]:
        """Starts a command; returns our ends of its channel, stdout and stderr."""
        if self.gone:
            raise _connection_lost()
        # The far ends are always closed here: the agent holds its own copies, and ours would hide the end of
        # the pipes. Our ends are closed only if an error keeps them from being returned.
        with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
            try:
                channel, far = socket.socketpair()
                ours.callback(channel.close)
                theirs.callback(far.close)
                out_read, out_write = _pipe(ours, theirs, owner)
                err_read, err_write = _pipe(ours, theirs, owner)
                source = stdin_of(stdin)
                theirs.callback(os.close, source)
            except OSError as error:
                raise SandboxError(
                    f"The node could not start a command in a sandbox: {error.strerror}."
                ) from error
            self._send("X", 0, 0, [far.fileno(), source, out_write, err_write])
            channel.setblocking(False)
            ours.pop_all()
        return channel, (out_read, err_read)

    async def _follow(self, channel: socket.socket, body: bytes, timeout_s: float) -> tuple[ExecReport, bool]:
        """Sends a command's order; returns its report and whether the node had to end the command.

        The command's supervisor ends it at its timeout. If the supervisor is late, because the command leaves
        it no CPU time, the node tells it to. When this is cancelled, the command is killed first.
        """
        watching = asyncio.create_task(self._report(channel, body))
        try:
            late = not await self._ended(watching, timeout_s + _LATE_S)
            if late:
                _stop(channel)
                if not await self._ended(watching, _DEATH_S):
                    raise SandboxError(
                        f"The sandbox's agent did not end a command within {_DEATH_S:.0f} s of its timeout."
                    )
            return watching.result(), late
        except asyncio.CancelledError:
            _stop(channel)
            await asyncio.wait({watching}, timeout=_DEATH_S)
            raise
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    async def _ended(self, watching: asyncio.Task[ExecReport], within_s: float) -> bool:
        """Returns whether a command ends within this time, not counting time that the sandbox is paused."""
        end = self._awake_s() + within_s
        while not watching.done() and (left := end - self._awake_s()) > 0:
            await asyncio.wait({watching}, timeout=min(max(left, 0.05), 1.0))
        # If this process was itself stopped for a while, the report may lie unread in the channel.
        await asyncio.wait({watching}, timeout=0.05)
        return watching.done()

    def _awake_s(self) -> float:
        """A clock that stands still while the sandbox is paused."""
        return (time.monotonic() if self._frozen_at is None else self._frozen_at) - self._frozen_s

    async def _report(self, channel: socket.socket, body: bytes) -> ExecReport:
        # The command may be killed before it has its order; the report says so then.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            await self._loop.sock_sendall(channel, body)
        data = b""
        while len(data) < REPORT_SIZE:
            try:
                piece = await self._loop.sock_recv(channel, REPORT_SIZE - len(data))
            except ConnectionResetError:
                piece = b""
            if not piece:
                raise _connection_lost()
            data += piece
        return parse_report(data)

    async def _ask(self, operation: Operation, value: int = 0) -> int:
        """Sends a request and returns the descriptor that comes with the answer, or -1."""
        if self.gone:
            raise _connection_lost()
        self._number += 1
        number = self._number
        waiting = self._loop.create_future()
        self._waiting[number] = waiting
        delivered = False
        try:
            self._send(operation, number, value, [])
            async with asyncio.timeout(_ANSWER_S):
                descriptor = int(await waiting)
                delivered = True
                return descriptor
        except TimeoutError as error:
            raise SandboxError(f"The sandbox's agent did not answer within {_ANSWER_S:.0f} s.") from error
        finally:
            del self._waiting[number]
            # An answer can arrive just as the wait is cancelled; its descriptor would leak.
            if not delivered:
                _close_answer(waiting)

    def _send(self, operation: Operation, number: int, value: int, descriptors: list[int]) -> None:
        try:
            socket.send_fds(self._control, [pack_request(operation, number, value)], descriptors)
        except BlockingIOError as error:
            raise SandboxError(
                "The sandbox's agent accepts no more requests: too many are in flight."
            ) from error
        except OSError as error:
            raise _connection_lost() from error

    def _receive(self) -> None:
        try:
            packet, descriptors, _, _ = socket.recv_fds(self._control, REPLY_SIZE, 1)
        except BlockingIOError:
            return
        except OSError:
            packet = b""
            descriptors = []
        if len(packet) != REPLY_SIZE:
            self.close()
            return
        # `recv_fds` cannot set MSG_CMSG_CLOEXEC, so mark the descriptors here.
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
        self._resolve(parse_reply(packet), descriptors[0] if descriptors else -1)

    def _resolve(self, reply: AgentReply, descriptor: int) -> None:
        waiting: asyncio.Future[int] | asyncio.Future[None] | None = self._waiting.get(reply.id)
        if reply.operation == HELLO:
            if reply.error != VERSION:
                self.close()
            elif not self.greeted.done():
                self.greeted.set_result(None)
        elif waiting is None or waiting.done():
            if descriptor >= 0:
                os.close(descriptor)
        elif reply.error:
            message = (
                f"The sandbox's agent could not do {chr(reply.operation)!r}: {os.strerror(reply.error)}."
            )
            waiting.set_exception(SandboxError(message))
        else:
            self._waiting[reply.id].set_result(descriptor)


def _connection_lost() -> SandboxError:
    return SandboxError(
        "The sandbox is gone: its container ended, was removed, or ran out of memory as a whole. Open a "
        "new one and run the command again."
    )


def _stop(channel: socket.socket) -> None:
    """Tells a command's supervisor to end it, by closing our write side of the channel."""
    # The command may have ended already.
    with contextlib.suppress(OSError):
        channel.shutdown(socket.SHUT_WR)


def _close_answer(waiting: asyncio.Future[int]) -> None:
    """Closes the descriptor of an answer that nobody waits for any more."""
    if waiting.done() and not waiting.cancelled() and waiting.exception() is None and waiting.result() >= 0:
        os.close(waiting.result())


def _pipe(ours: contextlib.ExitStack, theirs: contextlib.ExitStack, owner: int | None) -> tuple[int, int]:
    """Opens a pipe; the read end closes with `ours`, the write end with `theirs`."""
    read, write = os.pipe()
    ours.callback(os.close, read)
    theirs.callback(os.close, write)
    if owner is not None:
        os.fchown(write, owner, owner)
    return read, write


def _peer(connection: socket.socket) -> int:
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    return int.from_bytes(credentials[:4], "little", signed=True)
