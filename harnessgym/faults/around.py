"""A sandbox that wraps another one. Base of the two sandboxes that apply faults."""

from collections.abc import Sequence
from pathlib import Path
from typing import Unpack

from harnessgym.errors import ConfigError
from harnessgym.faults.connection import PORT, FaultyRelay
from harnessgym.faults.library import library
from harnessgym.faults.plan import FaultPlan
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

FOLDER = ".harnessgym/faults"
"""Folder in the workspace for the files that faults need."""
LIBRARY = f"{FOLDER}/fault.so"


class Around:
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
