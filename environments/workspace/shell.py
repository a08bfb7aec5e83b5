"""Runs an episode's commands: each through a new `exec`, or all through a runner that stays in the sandbox.

A sandbox that makes namespaces for each command needs milliseconds for that. There, one command runs for
the whole episode, `runner.py`, and it runs the agent's commands. Either way each command is a shell of its
own that starts in the workspace with an empty standard input. When it ends, everything that it started is
killed.
"""

import asyncio
import json
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from harnessgym.errors import SandboxError
from harnessgym.sandbox import Capability, ExecResult, Prewarm, Sandbox

RUNNER = Path(__file__).with_name("runner.py")
_RESIDENT = frozenset({Capability.PREWARM, Capability.PROCESSES, Capability.HOSTS})
"""Capabilities for the runner: an interpreter, a PID namespace of its own, and a connection from outside."""
_BOTH = 'exec sh -c "$0" 2>&1'
_KEPT = 1 << 18
"""Bytes that are kept of a command's output, from its end."""
_PORT = 8078
_EPISODE_S = 7 * 86_400.0
_SLACK_S = 10.0
"""Extra seconds to wait for the runner's answer after a command's time limit."""
_START_S = 60.0
"""Seconds for a runner to connect, even on a loaded machine."""
_HEADER = 4_096


@dataclass(frozen=True, slots=True)
class CommandOutput:
    """The output of a command, and how it ended."""

    output: str
    missing: int
    """Bytes of earlier output that were dropped."""
    code: int
    """Exit code, or the negative signal that ended it."""
    timed_out: bool


class Shell(Protocol):
    """Runs an episode's commands."""

    async def run(self, command: str, timeout_s: float) -> CommandOutput:
        """Runs one command to its end. Raises SandboxError if the sandbox, not the command, failed."""
        ...

    async def aclose(self) -> None:
        """Ends what runs. The sandbox stays open."""
        ...


def shell_in(sandbox: Sandbox, env: Mapping[str, str]) -> Shell:
    """The fastest shell that the sandbox supports. `env` is added to the environment of commands."""
    resident = sandbox.capabilities >= _RESIDENT and Capability.IMAGE not in sandbox.capabilities
    return ResidentShell(sandbox, env) if resident else CommandShell(sandbox, env)


class CommandShell:
    """Runs each command with a new `exec`."""

    def __init__(self, sandbox: Sandbox, env: Mapping[str, str]) -> None:
        self._sandbox = sandbox
        self._env = env

    async def run(self, command: str, timeout_s: float) -> CommandOutput:
        """See `Shell.run`."""
        size = 0

        def count(_: str, data: bytes) -> None:
            nonlocal size
            size += len(data)

        argv = ["sh", "-c", _BOTH, command]
        done = await self._sandbox.exec(
            argv, env=self._env, timeout_s=timeout_s, max_output=_KEPT, on_output=count
        )
        output = done.stdout + done.stderr
        return CommandOutput(
            output.decode(errors="replace"), max(0, size - len(output)), _code(done), done.timed_out
        )

    async def aclose(self) -> None:
        """Does nothing: no command outlives its `run`."""


class ResidentShell:
    """Runs commands through a runner. It starts with the first command, and again if a command killed it."""

    def __init__(self, sandbox: Sandbox, env: Mapping[str, str], start_s: float = _START_S) -> None:
        self._sandbox = sandbox
        self._env = env
        self._start_s = start_s
        self._running: asyncio.Task[ExecResult] | None = None
        self._connection: RunnerConnection | None = None

    async def start(self) -> None:
        """Starts the runner, unless it runs. Raises SandboxError."""
        if self._running is not None and not self._running.done():
            return
        await self.aclose()
        self._connection = RunnerConnection()
        self._running = asyncio.create_task(
            self._sandbox.exec(
                ["python", str(RUNNER), str(_PORT)],
                env=self._env,
                prewarm=Prewarm(),
                readable=(str(RUNNER),),
                outside=self._connection,
                timeout_s=_EPISODE_S,
                max_output=_HEADER,
            )
        )
        # Whichever comes first: a runner that fails to start ends its `exec` and never connects.
        connected = asyncio.create_task(self._connection.connected())
        await asyncio.wait(
            {self._running, connected}, timeout=self._start_s, return_when=asyncio.FIRST_COMPLETED
        )
        if connected.done():
            return
        connected.cancel()
        if not self._running.done():
            await self.aclose()
            raise SandboxError(
                f"The runner of a sandbox's commands did not connect within {self._start_s:g} s."
            )
        result = self._running.result()
        raise SandboxError(f"The runner of a sandbox's commands ended at once: {result.describe()}.")

    async def run(self, command: str, timeout_s: float) -> CommandOutput:
        """See `Shell.run`. A missing or malformed answer means that the command killed the runner."""
        await self.start()
        assert self._connection is not None
        try:
            async with asyncio.timeout(timeout_s + _SLACK_S):
                return await self._connection.ask({"command": command, "timeout_s": timeout_s, "most": _KEPT})
        except (TimeoutError, ValueError, KeyError, TypeError, OSError, EOFError, asyncio.LimitOverrunError):
            ended = await self._ended()
            return CommandOutput(
                "The command ended everything in the sandbox, the shell that ran it too.",
                0,
                ended,
                timed_out=False,
            )

    async def aclose(self) -> None:
        """See `Shell.aclose`."""
        running = self._running
        self._running = None
        if running is not None:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    async def _ended(self) -> int:
        """Ends the runner and returns its exit code. Raises SandboxError if the sandbox died."""
        assert self._running is not None
        # The connection breaks a moment before the `exec` returns, so give it time to report the exit code.
        await asyncio.wait({self._running}, timeout=0.2)
        if self._running.done() and not self._running.cancelled():
            return _code(self._running.result())
        await self.aclose()
        return -9


class RunnerConnection:
    """The node's end of the connection to a runner (`harnessgym.sandbox.Outside`).

    It accepts one connection, the first.
    """

    port = _PORT

    def __init__(self) -> None:
        self._streams: asyncio.Future[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = (
            asyncio.get_running_loop().create_future()
        )
        self._accepting: asyncio.Task[None] | None = None

    @property
    def env(self) -> Mapping[str, str]:
        """An empty environment."""
        return {}

    async def serve(self, listener: socket.socket) -> "RunnerConnection":
        """See `Outside.serve`."""
        listener.setblocking(False)
        self._accepting = asyncio.create_task(self._accept(listener))
        return self

    async def connected(self) -> None:
        """Waits until the runner has connected."""
        # Shielded, because `start` cancels this wait on a timeout, which would cancel the future itself.
        await asyncio.shield(self._streams)

    async def ask(self, order: Mapping[str, Any]) -> CommandOutput:
        """Sends one order and reads the answer. The answer is hostile: it is bounded and used as output only.

        Raises ValueError, KeyError, TypeError, OSError, EOFError or LimitOverrunError for a malformed answer.
        """
        reader, writer = await self._streams
        writer.write(json.dumps(order).encode() + b"\n")
        await writer.drain()
        answer = json.loads(await reader.readuntil(b"\n"))
        size = int(answer["size"])
        missing = int(answer["lost"])
        if not 0 <= size <= _KEPT or not 0 <= missing < 1 << 62:
            raise ValueError("A runner announced more output than it may send.")
        output = await reader.readexactly(size)
        return CommandOutput(
            output.decode(errors="replace"), missing, int(answer["status"]), answer["timed_out"] is True
        )

    def close(self) -> None:
        """Closes the connection."""
        if self._accepting is not None:
            self._accepting.cancel()
        if self._streams.done() and not self._streams.cancelled():
            self._streams.result()[1].transport.abort()
        else:
            self._streams.cancel()

    async def _accept(self, listener: socket.socket) -> None:
        # The listener closes after the first connection: a later one would be a program of the agent.
        with listener:
            connection, _ = await asyncio.get_running_loop().sock_accept(listener)
        self._streams.set_result(await asyncio.open_connection(sock=connection, limit=_HEADER))


def _code(done: ExecResult) -> int:
    return -(done.signal or 0) if done.exit_code is None else done.exit_code
