"""Sandboxes with faults: one that wraps another, the relay that drops its connections, and the preloaded
library.

`FaultyRelay` replaces a sandbox's relay (`harnessgym.sandboxes.relay`): it accepts the harness's connections,
copies bytes to the proxy's socket and back unchanged, and resets the connections that the plan selects. The
library shows clock jumps and full disks; it is compiled with this machine's compiler.
"""

import asyncio
import contextlib
import functools
import shutil
import socket
import struct
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Unpack

from harnessgym.errors import ConfigError, SandboxError
from harnessgym.faults.plan import DrawnFault, FaultPlan
from harnessgym.sandbox import (
    Capability,
    ExecOptions,
    ExecResult,
    Sandbox,
    Snapshot,
    Stats,
    WorkspaceExport,
    require,
)

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


SOURCE = Path(__file__).parent / "fault.c"
CLOCK = "HARNESSGYM_FAULT_CLOCK"
DISK = "HARNESSGYM_FAULT_DISK"
_FLAGS = ("-shared", "-fPIC", "-O2", "-nostdlib")
"""No C library is linked in, because programs in images may use another one."""


@functools.cache
def library() -> bytes:
    """The library's bytes, compiled once per process. Raises SandboxError if that fails."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise SandboxError(
            "Clock jumps and full disks need a C compiler on this machine. Install one (`apt-get install "
            "gcc`)."
        )
    with tempfile.TemporaryDirectory(prefix="harnessgym-fault-") as folder:
        target = Path(folder) / "fault.so"
        done = subprocess.run(
            [compiler, *_FLAGS, "-o", target, SOURCE], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SandboxError(f"{compiler} cannot compile {SOURCE.name}: {done.stderr[-2000:].strip()}")
        return target.read_bytes()


FOLDER = ".harnessgym/faults"
"""Folder in the workspace for the files that faults need."""
LIBRARY = f"{FOLDER}/fault.so"


class WrappedSandbox:
    """Forwards every call. If the plan drops connections, a `FaultyRelay` stands before the proxy."""

    def __init__(self, sandbox: Sandbox, plan: FaultPlan, proxy_socket: Path | None = None) -> None:
        """Wraps `sandbox`.

        If the plan drops connections, raises ConfigError without `proxy_socket`, and CapabilityError if the
        sandbox lacks `HOSTS`.
        """
        self.sandbox = sandbox
        self.plan = plan
        self.capabilities = sandbox.capabilities
        self.proxy_url = sandbox.proxy_url
        self.workspace = sandbox.workspace
        self._proxy_socket = proxy_socket
        self._surroundings: tuple[str, str] | None = None
        self._has_library = False
        if plan.breaks_connections:
            if proxy_socket is None:
                raise ConfigError(
                    "Connections can only be dropped where the proxy is reached through a socket that is "
                    "named."
                )
            require(sandbox.capabilities, frozenset({Capability.HOSTS}))
            self.proxy_url = f"http://127.0.0.1:{PORT}"

    async def exec(self, cmd: Sequence[str], **options: Unpack[ExecOptions]) -> ExecResult:
        """See `Sandbox.exec`."""
        if options.get("outside") is None and self.plan.breaks_connections:
            assert self._proxy_socket is not None
            options["outside"] = FaultyRelay(self._proxy_socket, self.plan, cmd)
        return await self.sandbox.exec(cmd, **options)

    async def surroundings(self) -> tuple[str, str]:
        """The workspace's path and the PATH, as seen inside the sandbox."""
        if self._surroundings is None:
            asked = await self.sandbox.exec(["sh", "-c", 'pwd; printf "%s\\n" "$PATH"'])
            folder, _, path = asked.stdout.decode().partition("\n")
            self._surroundings = folder, path.strip()
        return self._surroundings

    async def lay_library(self) -> str:
        """Writes the preloaded library to the workspace once; returns its path inside the sandbox."""
        if not self._has_library:
            await self.sandbox.write(LIBRARY, library())
            self._has_library = True
        return f"{(await self.surroundings())[0]}/{LIBRARY}"

    async def read(self, path: str) -> bytes:
        """See `Sandbox.read`."""
        return await self.sandbox.read(path)

    async def write(self, path: str, data: bytes) -> None:
        """See `Sandbox.write`."""
        await self.sandbox.write(path, data)

    async def upload(self, local: Path, path: str) -> None:
        """See `Sandbox.upload`."""
        await self.sandbox.upload(local, path)

    async def download(self, path: str, local: Path) -> None:
        """See `Sandbox.download`."""
        await self.sandbox.download(path, local)

    async def export(
        self, local: Path, *, max_bytes: int, max_files: int, collect: Sequence[str] = ()
    ) -> WorkspaceExport:
        """See `Sandbox.export`."""
        return await self.sandbox.export(local, max_bytes=max_bytes, max_files=max_files, collect=collect)

    async def kill_all(self) -> None:
        """See `Sandbox.kill_all`."""
        await self.sandbox.kill_all()

    async def pause(self) -> None:
        """See `Sandbox.pause`."""
        await self.sandbox.pause()

    async def resume(self) -> None:
        """See `Sandbox.resume`."""
        await self.sandbox.resume()

    async def stats(self) -> Stats:
        """See `Sandbox.stats`."""
        return await self.sandbox.stats()

    async def snapshot(self) -> Snapshot:
        """See `Sandbox.snapshot`."""
        return await self.sandbox.snapshot()

    async def fork(self, snapshot: Snapshot) -> Sandbox:
        """See `Sandbox.fork`. The new sandbox has no faults: wrap it with a plan of its own."""
        return await self.sandbox.fork(snapshot)

    async def aclose(self) -> None:
        """See `Sandbox.aclose`."""
        await self.sandbox.aclose()
