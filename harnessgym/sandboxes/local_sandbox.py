"""A sandbox on this machine: one rollout's folder, with commands run by a fork server."""

import asyncio
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, Unpack

from harnessgym.errors import SandboxError
from harnessgym.sandbox import (
    Capability,
    Equipment,
    ExecOptions,
    ExecResult,
    Outside,
    Prewarm,
    Serving,
    Snapshot,
    Stats,
    WorkspaceExport,
    require,
)
from harnessgym.sandboxes.forking import ForkedRun, ForkServer, interpreter
from harnessgym.sandboxes.forkserver.wire import ForkOrder
from harnessgym.sandboxes.output import Output
from harnessgym.sandboxes.usage import ResourceUsage, usage_below
from harnessgym.sandboxes.workspace import Workspace
from harnessgym.task import Limits

if TYPE_CHECKING:
    from harnessgym.sandboxes.local import LocalBackend

_MIB = 1 << 20
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SandboxPaths:
    """One rollout's paths and environment, as its own processes see them."""

    workspace: str
    env: Mapping[str, str]
    """The base environment; the harness's own variables are added to it."""


async def through(work: asyncio.Task[T]) -> T:
    """Awaits a task that must not be interrupted. When this is cancelled, the task is finished first."""
    # `wait` neither cancels the task nor raises its error, so the cancellation is what the caller gets.
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait({work})
        raise


async def awaited(run: asyncio.Task[T]) -> T:
    """Awaits a command. When this is cancelled, the command is cancelled too, and waited for."""
    try:
        return await asyncio.shield(run)
    except asyncio.CancelledError:
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)
        raise


def bounds(options: ExecOptions, limits: Limits) -> tuple[float, int]:
    """A command's timeout in seconds and output limit in bytes per stream; by default the sandbox's."""
    timeout_s, most = options.get("timeout_s"), options.get("max_output")
    return (
        limits.wall_s if timeout_s is None else timeout_s,
        limits.output_bytes if most is None else most,
    )


def refuse_empty(cmd: Sequence[str]) -> None:
    """Raises SandboxError for a command without a program."""
    if not cmd:
        raise SandboxError("A sandbox was asked to run an empty command.")


def refuse_unwarmable(argv: Sequence[str], *, is_python: bool) -> None:
    """Raises SandboxError for a prewarmed command other than `python program ...`, `python -m module ...`."""
    if not is_python:
        raise SandboxError(
            f"Only a Python command can be prewarmed, not {argv[0]!r}. Start it with `python`."
        )
    if len(argv) < (3 if list(argv[1:2]) == ["-m"] else 2):
        raise SandboxError(
            "A prewarmed command must name its program: `python program.py` or `python -m module`."
        )


class LocalSandbox:
    """See `harnessgym.sandbox.Sandbox`. `on_output` is called on the event loop."""

    def __init__(self, backend: "LocalBackend", folder: Path, limits: Limits, equipment: Equipment) -> None:
        self._backend = backend
        self._limits = limits
        self._equipment = equipment
        self._place = backend.place(folder)
        self._folder = folder
        self._files = Workspace(folder / "workspace", backend.owner, backend.options.read_mb * _MIB)
        self._running: dict[asyncio.Task[ExecResult], ForkedRun] = {}
        self._cpu_s = 0.0
        self._closing: asyncio.Task[None] | None = None
        self.capabilities = backend.capabilities
        self.proxy_url = backend.proxy_url if equipment.proxy else ""
        self.workspace = folder / "workspace"

    async def exec(self, cmd: Sequence[str], **options: Unpack[ExecOptions]) -> ExecResult:
        """See `Sandbox.exec`."""
        prewarm = options.get("prewarm")
        outside = options.get("outside")
        if options.get("user") == "root":
            require(self.capabilities, frozenset({Capability.ROOT}))
        if outside is not None:
            require(self.capabilities, frozenset({Capability.HOSTS}))
        refuse_empty(cmd)
        self._must_be_open()
        kind = prewarm or Prewarm()
        everything = tuple(sorted({*self._equipment.readable, *options.get("readable", ())}))
        time_s, most = bounds(options, self._limits)
        own = {**(outside.env if outside is not None else {}), **(options.get("env") or {})}
        order = self._order(interpreter(cmd, kind.python), own, options.get("cwd", "."), prewarm, time_s)
        order = self._backend.confine(
            order, self.workspace, everything, self._port(outside), kind.python, self._equipment.hidden
        )
        on_output = options.get("on_output")
        output = Output("stdout", most, on_output), Output("stderr", most, on_output)
        held = ForkedRun()
        stdin = options.get("stdin")
        run = asyncio.create_task(self._run((kind, everything), order, stdin, time_s, output, held, outside))
        self._running[run] = held
        run.add_done_callback(self._ended)
        return await awaited(run)

    async def read(self, path: str) -> bytes:
        """See `Sandbox.read`."""
        return await self._in_thread(lambda: self._files.read(path))

    async def write(self, path: str, data: bytes) -> None:
        """See `Sandbox.write`."""
        await self._in_thread(lambda: self._files.write(path, data))

    async def upload(self, local: Path, path: str) -> None:
        """See `Sandbox.upload`."""
        await self._in_thread(lambda: self._files.copy_in(local, path))

    async def download(self, path: str, local: Path) -> None:
        """See `Sandbox.download`."""
        await self._in_thread(lambda: self._files.copy_out(path, local))

    async def export(
        self, local: Path, *, max_bytes: int, max_files: int, collect: Sequence[str] = ()
    ) -> WorkspaceExport:
        """See `Sandbox.export`. Raises SandboxError for `collect`: nothing lies beside the workspace."""
        if collect:
            raise SandboxError(
                f"This sandbox has no folders beside its workspace, so {collect[0]!r} cannot be collected."
            )
        return await self._in_thread(lambda: self._files.export(local, max_bytes, max_files))

    async def kill_all(self) -> None:
        """See `Sandbox.kill_all`. The commands' results report signal 9."""
        running = dict(self._running)
        for run in running.values():
            run.kill()
        if running:
            await asyncio.wait(running)

    async def pause(self) -> None:
        """See `Sandbox.pause`."""
        require(self.capabilities, frozenset({Capability.PAUSE}))

    async def resume(self) -> None:
        """See `Sandbox.resume`."""
        require(self.capabilities, frozenset({Capability.PAUSE}))

    async def stats(self) -> Stats:
        """See `Sandbox.stats`. Without namespaces, processes whose init was killed are not counted."""
        inits = [run.init for run in self._running.values() if run.init is not None]

        def look() -> Stats:
            used = sum((usage_below(pid) for pid in inits), ResourceUsage())
            return Stats(used.memory_bytes, used.processes, used.cpu_s + self._cpu_s, self._files.size())

        return await self._in_thread(look)

    async def snapshot(self) -> Snapshot:
        """See `Sandbox.snapshot`. Its size is limited to `Limits.disk_mb`."""
        self._must_be_open()
        return await self._backend.keep(self._files, self._limits)

    async def fork(self, snapshot: Snapshot) -> "LocalSandbox":
        """See `Sandbox.fork`."""
        return await self._backend.continued(snapshot, self._limits, self._equipment)

    async def aclose(self) -> None:
        """Kills all processes, then removes the folder, even if this is cancelled meanwhile."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        await through(self._closing)

    async def _close(self) -> None:
        for run in list(self._running):
            run.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        try:
            await asyncio.to_thread(Workspace(self._folder, None, 0).remove)
        # Forget it even on an error: the caller gets the error once, and the backend removes what is left
        # together with its own folder.
        finally:
            self._backend.forget(self)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        self._must_be_open()
        return await asyncio.to_thread(work)

    def _must_be_open(self) -> None:
        if self._closing is not None:
            raise SandboxError("This sandbox is closed. Open another one.")

    def _port(self, outside: Outside | None) -> int:
        """Loopback port of the listener to open inside; 0 for none."""
        if outside is not None:
            return outside.port
        return self._backend.port if self._equipment.proxy else 0

    def _order(
        self, argv: list[str], env: Mapping[str, str], cwd: str, prewarm: Prewarm | None, timeout_s: float
    ) -> ForkOrder:
        if prewarm is not None:
            refuse_unwarmable(argv, is_python=argv[:1] == interpreter(["python"], prewarm.python))
        limits = self._limits
        return ForkOrder(
            argv=argv,
            env={**self._place.env, **env},
            cwd=os.path.normpath(os.path.join(self._place.workspace, cwd)),
            workspace=self._place.workspace,
            python=prewarm is not None,
            memory_bytes=limits.memory_mb * _MIB,
            # The init counts too.
            processes=limits.processes + 1,
            file_bytes=self._backend.options.file_mb * _MIB,
            timeout_s=timeout_s,
            judges=self._equipment.grades,
            namespaces=False,
        )

    async def _run(
        self,
        kind: tuple[Prewarm, tuple[str, ...]],
        order: ForkOrder,
        stdin: bytes | None,
        timeout_s: float,
        output: tuple[Output, Output],
        run: ForkedRun,
        outside: Outside | None,
    ) -> ExecResult:
        """Runs a command; its listener is served exactly while it runs."""
        server: ForkServer = await self._backend.server(*kind)
        serves = outside or self._backend.relay
        serving: list[Serving] = []

        async def listen(listener: socket.socket) -> None:
            assert serves is not None
            serving.append(await serves.serve(listener))

        try:
            return await server.run(
                order,
                stdin=stdin,
                timeout_s=timeout_s,
                output=output,
                run=run,
                on_listener=listen if serves else None,
            )
        finally:
            for each in serving:
                each.close()

    def _ended(self, run: asyncio.Task[ExecResult]) -> None:
        del self._running[run]
        if not run.cancelled() and run.exception() is None:
            self._cpu_s += run.result().cpu_s or 0.0
