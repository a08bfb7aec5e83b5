"""The node's side of a fork server: starts it, orders rollouts from it, restarts it after it has died."""

import asyncio
import contextlib
import os
import socket
import struct
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from harnessgym.errors import SandboxError
from harnessgym.sandbox import ExecResult
from harnessgym.sandboxes.descriptors import readable, stdin_of
from harnessgym.sandboxes.forkserver.wire import FORK, READY, ForkEvent, ForkOrder, pack_order, parse_event
from harnessgym.sandboxes.output import Output, PipeReader

FORKSERVER = Path(__file__).parent / "forkserver"
_BOOT = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); from forkserver.server import main; del "
    "sys.path[0]; main()"
)
_START_S = 120.0
_SLACK_S = 2.0
"""Extra time past a command's timeout before the node ends it; its init should end it first."""
_INT = struct.Struct("i")
_CREDENTIALS = struct.Struct("3i")
_DEATH_S = 10.0
"""How long an init may take to kill and collect a rollout before the sandbox counts as broken."""

OnListener = Callable[[socket.socket], Awaitable[None]]
"""Takes over the listener that a rollout opened on its loopback."""


@dataclass(frozen=True, slots=True)
class Spec:
    """How a fork server is started."""

    python: str
    warmers: tuple[str, ...]
    shell: tuple[str, ...]
    """Command in front of the interpreter; empty for none."""
    env: tuple[tuple[str, str], ...]
    """Its whole environment. Every fork can read it, so it holds no secret."""
    user: int = 0
    """User and group to switch to if it starts as root; 0 keeps root."""
    namespaces: bool = True

    def command(self, control_fd: int) -> list[str]:
        """The server's argv. With `env`, it is all the server gets from the node."""
        options = (str(control_fd), str(self.user), str(self.user), str(int(self.namespaces)))
        return [*self.shell, self.python, "-I", "-c", _BOOT, str(FORKSERVER.parent), *options, *self.warmers]


class ForkedRun:
    """The node's handle on one running command."""

    def __init__(self) -> None:
        self._killed = asyncio.Event()
        self.init: int | None = None
        """Process id of the command's init, the ancestor of its processes; None before it starts and after it
        has ended."""

    def kill(self) -> None:
        """Ends the command and everything it started, even if it has not started yet."""
        self._killed.set()

    async def follow(
        self, channel: socket.socket, timeout_s: float, on_listener: OnListener | None
    ) -> tuple[ForkEvent, bool]:
        """Waits until the command ends. Returns its last event and whether it timed out.

        The command's init enforces the timeout, so that it works even if this process hangs. If the init is
        late, this process ends the command.
        """
        watching = asyncio.create_task(self._watch(channel, on_listener))
        killing = asyncio.create_task(self._killed.wait())
        try:
            await asyncio.wait(
                {watching, killing}, timeout=timeout_s + _SLACK_S, return_when=asyncio.FIRST_COMPLETED
            )
            late = not watching.done() and not killing.done()
            if not watching.done():
                _stop(channel)
                await asyncio.wait({watching}, timeout=_DEATH_S)
            if not watching.done():
                raise SandboxError(
                    f"A rollout's init did not end it within {_DEATH_S:.0f} s of being told to."
                )
        # A cancelled caller must not leave processes behind: wait for their end before passing it on.
        except asyncio.CancelledError:
            _stop(channel)
            await asyncio.wait({watching}, timeout=_DEATH_S)
            raise
        else:
            event = watching.result()
            return event, late or event.timed_out
        finally:
            self.init = None
            for task in (watching, killing):
                task.cancel()
            await asyncio.gather(watching, killing, return_exceptions=True)

    async def _watch(self, channel: socket.socket, on_listener: OnListener | None) -> ForkEvent:
        """Reads a rollout's events up to the last one. Raises SandboxError if it never comes."""
        buffer = b""
        while True:
            await readable(channel)
            data, descriptors, sender = _receive(channel)
            for descriptor in descriptors:
                listener = socket.socket(fileno=descriptor)
                if on_listener is None:
                    listener.close()
                else:
                    await on_listener(listener)
            if not data:
                raise SandboxError(
                    "A rollout's init vanished: the fork server died, or was killed. Run the rollout again."
                )
            *lines, buffer = (buffer + data).split(b"\n")
            for event in map(parse_event, lines):
                if event.kind == "failed":
                    raise SandboxError(f"The sandbox could not be set up: {event.message}.")
                if event.kind == "exited":
                    return event
                self.init = sender


class ForkServer:
    """One warmed interpreter. Rollouts may be ordered from it concurrently."""

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        self._starting = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None
        self._control: socket.socket | None = None
        self.starts = 0

    @property
    def pid(self) -> int | None:
        """Process id of the server, or of the shell in front of it; None if it was not started."""
        return self._process.pid if self._process is not None else None

    async def run(
        self,
        order: ForkOrder,
        *,
        stdin: bytes | None,
        timeout_s: float,
        output: tuple[Output, Output],
        run: ForkedRun | None = None,
        on_listener: OnListener | None = None,
    ) -> ExecResult:
        """Forks and runs the order. Returns when everything it started is dead. Raises SandboxError."""
        run = run or ForkedRun()
        channel, out, err = await self._fork(stdin)
        drains = [PipeReader(fd, each, run.kill) for fd, each in zip((out, err), output, strict=True)]
        began = time.monotonic()
        try:
            await asyncio.get_running_loop().sock_sendall(channel, pack_order(order))
            exited, timed_out = await run.follow(channel, timeout_s, on_listener)
            wall_s = time.monotonic() - began
            for drain in drains:
                drain.finish()
        except (BrokenPipeError, ConnectionResetError) as error:
            raise SandboxError(
                "The fork server died while it started a rollout. Run the rollout again."
            ) from error
        finally:
            channel.close()
            for drain in drains:
                drain.close()
        return ExecResult(
            exit_code=None if timed_out else exited.code,
            signal=exited.signal,
            stdout=output[0].data,
            stderr=output[1].data,
            stdout_truncated=output[0].truncated,
            stderr_truncated=output[1].truncated,
            timed_out=timed_out,
            wall_s=wall_s,
            cpu_s=exited.cpu_s,
        )

    async def start(self) -> None:
        """Starts the server unless it runs. Raises SandboxError with its output if it does not start."""
        async with self._starting:
            if self._process is not None and self._process.returncode is None:
                return
            await self._end()
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            ours.setblocking(False)
            with theirs:
                self._process = await _spawn(self._spec, theirs.fileno())
            self._control = ours
            self.starts += 1
            await self._await_ready(ours)

    async def aclose(self) -> None:
        """Ends the server, and with it every rollout."""
        async with self._starting:
            await self._end()

    async def _await_ready(self, control: socket.socket) -> None:
        assert self._process is not None
        try:
            async with asyncio.timeout(_START_S):
                answer = await asyncio.get_running_loop().sock_recv(control, 4096)
        except TimeoutError:
            answer = f"It was not warm after {_START_S:.0f} s.".encode()
        if answer == READY:
            return
        if self._process.returncode is None and answer:
            self._process.kill()
        assert self._process.stderr is not None
        stderr = (await self._process.stderr.read(4096)).decode(errors="replace").strip()
        reason = answer.decode(errors="replace") or stderr or "It ended with no output."
        await self._end()
        raise SandboxError(f"The fork server of {self._spec.python} did not start. {reason}")

    async def _end(self) -> None:
        process = self._process
        self._process = None
        # The server exits when its control socket closes; it is killed only if it does not.
        if self._control is not None:
            self._control.close()
            self._control = None
        if process is None:
            return
        try:
            async with asyncio.timeout(_DEATH_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()

    async def _fork(self, stdin: bytes | None) -> tuple[socket.socket, int, int]:
        """Forks a rollout; returns our ends of its channel, stdout and stderr."""
        await self.start()
        assert self._control is not None
        ours, theirs = socket.socketpair()
        # The kernel then adds the sender's pid to each event, as seen from here: the init itself only knows
        # its pid in its own namespace.
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        out_read, out_write = os.pipe()
        err_read, err_write = os.pipe()
        source = stdin_of(stdin)
        # The harness may only open /dev/stdout by name if it owns the pipe.
        if self._spec.user and os.getuid() == 0:
            os.fchown(out_write, self._spec.user, self._spec.user)
            os.fchown(err_write, self._spec.user, self._spec.user)
        try:
            socket.send_fds(self._control, [FORK], [theirs.fileno(), source, out_write, err_write])
        except OSError as error:
            ours.close()
            os.close(out_read)
            os.close(err_read)
            raise SandboxError(
                f"The fork server takes no more rollouts: {error}. Run the rollout again."
            ) from error
        # The server holds its own copies; an open write end here would keep the pipes from ending.
        finally:
            theirs.close()
            for descriptor in (source, out_write, err_write):
                os.close(descriptor)
        ours.setblocking(False)
        return ours, out_read, err_read


async def _spawn(spec: Spec, control_fd: int) -> asyncio.subprocess.Process:
    try:
        return await asyncio.create_subprocess_exec(
            *spec.command(control_fd),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env=dict(spec.env),
            cwd="/",
            pass_fds=(control_fd,),
            start_new_session=True,
        )
    except OSError as error:
        raise SandboxError(f"Cannot start {(*spec.shell, spec.python)[0]}: {error}.") from error


def _receive(channel: socket.socket) -> tuple[bytes, list[int], int | None]:
    """Receives data, the descriptors sent with it, and the sender's process id."""
    room = socket.CMSG_SPACE(_INT.size) + socket.CMSG_SPACE(_CREDENTIALS.size)
    data, beside, _, _ = channel.recvmsg(1 << 16, room, socket.MSG_CMSG_CLOEXEC)
    descriptors: list[int] = []
    sender = None
    for level, kind, content in beside:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors += (number for (number,) in _INT.iter_unpack(content))
        elif level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
            sender = _CREDENTIALS.unpack(content)[0] or None
    return data, descriptors, sender


def _stop(channel: socket.socket) -> None:
    # The init may have ended already.
    with contextlib.suppress(OSError):
        channel.send(b"K")


def interpreter(command: Sequence[str], python: str) -> list[str]:
    """Replaces a leading `python` or `python3` in `command` by the path `python` (default: ours).

    An interpreter that is named by its path stays.
    """
    if command and command[0] in ("python", "python3"):
        return [python or sys.executable, *command[1:]]
    return list(command)
