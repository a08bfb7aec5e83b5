"""The proxy as a process: its settings, its listeners, its parts put together.

    harnessgym proxy --store sqlite:///runs/demo/traces.db --run-id ... --policy models/tiny

Everything it knows is in the store, so it may be killed at any time and started again.
"""

import asyncio
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import uvicorn
import uvloop
from pydantic import BaseModel
from starlette.types import ASGIApp

from harnessgym.errors import ConfigError
from harnessgym.store import workers
from harnessgym.store.trace_store import Synchronous, TraceStore
from proxies.control import Control
from proxies.dialects import DIALECTS, load_dialect
from proxies.gateway import Gateway
from proxies.language import Language
from proxies.recorder import Recorder
from proxies.relay import Relay, RelayLimits
from proxies.session import SessionTable
from proxies.workers import Connect, WorkerTable

_SHUTDOWN_S = 3.0


class ListenSettings(BaseModel, extra="forbid"):
    """Where one listener is: an inherited socket, a unix socket, or TCP, the first of them that is set."""

    fd: int | None = None
    """File descriptor of a listening socket that the parent process holds; connections queue while the proxy restarts."""
    uds: Path | None = None
    """Unix socket path. Its directory is made; mount the directory, not the socket."""
    host: str = "127.0.0.1"
    port: int | None = None
    """TCP port; 0 takes a free one."""

    def bind(self, mode: int) -> socket.socket | None:
        """The listening socket, None if nothing is set. A unix socket gets file mode `mode`."""
        if self.fd is not None:
            return socket.socket(fileno=self.fd)
        if self.uds is not None:
            return _bind_unix(self.uds, mode)
        if self.port is None:
            return None
        listener = socket.socket(socket.AF_INET6 if ":" in self.host else socket.AF_INET)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((self.host, self.port))
        except OSError as error:
            listener.close()
            raise ConfigError(f"The proxy cannot listen at {self.host}:{self.port}: {error}.") from error
        listener.listen(1024)
        return listener


class ProxySettings(BaseModel, extra="forbid"):
    """One proxy process."""

    store: str
    """URL of the trace store, which must exist."""
    synchronous: Synchronous = "NORMAL"
    """FULL survives power loss, at the price of a disk flush per commit."""
    run_id: str
    """The run whose workers it uses."""
    policy: Path
    """Model folder: tokenizer.json, tokenizer_config.json, chat template."""
    parser: str = "hermes"
    """Parser of the policy's answers; a name or `module:Class`."""
    model: str = "policy"
    """Model name under which harnesses find the policy."""
    tcp: ListenSettings = ListenSettings(port=0)
    """The harness listener on TCP."""
    unix: ListenSettings = ListenSettings()
    """The harness listener for sandboxes, in a directory of its own."""
    control: ListenSettings = ListenSettings(port=0)
    """The control listener; never mounted into a sandbox."""
    control_key: str
    """Bearer key of the control routes."""
    max_length: int = 32_768
    """Prompt and completion of a call together, in tokens."""
    max_in_flight: int = 1_024
    """Calls at once; more are refused as overload."""
    keepalive_s: float = 10.0
    """A stream that says nothing for this long gets a keep-alive."""
    disconnect_grace_s: float = 5.0
    """How long a call runs on after its last client left."""
    worker_wait_s: float = 120.0
    """How long a call waits for an engine worker."""


class Proxy:
    """A proxy inside an event loop.

    ```python
    proxy = Proxy(settings, store)
    await proxy.start()
    ...
    await proxy.stop()
    ```
    """

    def __init__(
        self, settings: ProxySettings, store: TraceStore, *, language: Language | None = None, connect: Connect | None = None
    ) -> None:
        """`language` and `connect` stand in for the policy folder's and for the known kinds of worker."""
        self.settings = settings
        language = language or Language.of_policy(settings.policy, settings.parser)
        self._store = store
        self.recorder = Recorder(store)
        self.workers = WorkerTable(connect, wait_s=settings.worker_wait_s)
        self.sessions = SessionTable(store, language.read)
        limits = RelayLimits(
            settings.model, settings.run_id, settings.max_length, settings.max_in_flight, settings.disconnect_grace_s
        )
        self.relay = Relay(self.recorder, self.workers, language, limits)
        self._gateway = Gateway(
            self.sessions, self.relay, self.recorder, [load_dialect(name) for name in DIALECTS], settings.keepalive_s
        )
        control = Control(settings.control_key, settings.run_id, self.sessions, self.workers, self.relay, self.recorder)
        self._control = control.app()
        self._servers: list[uvicorn.Server] = []
        self._serving: list[asyncio.Task[None]] = []
        self.url: str | None = None
        """Base URL of the TCP harness listener."""
        self.control_address = ""
        """`http://host:port` or `unix:/path` of the control listener."""

    async def start(self) -> None:
        """Listen; returns when requests are served."""
        for row in self._store.read(lambda conn: workers.of_run(conn, self.settings.run_id)):
            await self.workers.put(row)
        tcp, unix = self.settings.tcp.bind(0o666), self.settings.unix.bind(0o666)
        control = self.settings.control.bind(0o600)
        if control is None or (tcp is None and unix is None):
            raise ConfigError("The proxy needs a control listener, and a harness listener on TCP or a unix socket.")
        self.url = None if tcp is None else _address(tcp)
        self.control_address = _address(control)
        await self._listen(self._gateway, [listener for listener in (tcp, unix) if listener is not None])
        await self._listen(self._control, [control])

    async def stop(self) -> None:
        """Stop listening, record what is in flight, let go of workers. The store stays open."""
        for server in self._servers:
            server.should_exit = True
        await self.relay.close(self.sessions.open())
        await asyncio.gather(*self._serving)
        self.recorder.flush()
        self.workers.close()

    async def _listen(self, app: ASGIApp, sockets: list[socket.socket]) -> None:
        config = uvicorn.Config(
            app,
            http="httptools",
            ws="none",
            lifespan="off",
            interface="asgi3",
            access_log=False,
            log_level="warning",
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=int(_SHUTDOWN_S),
        )
        server = _Server(config)
        self._servers.append(server)
        self._serving.append(asyncio.create_task(server.serve(sockets=sockets)))
        while not server.started:
            if self._serving[-1].done():
                self._serving[-1].result()
            await asyncio.sleep(0)


class _Server(uvicorn.Server):
    """Two of these share a process, so signals are the process's business."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def serve(settings: ProxySettings) -> None:
    """Run a proxy until SIGTERM or SIGINT. Prints one line when it listens."""
    with TraceStore.open(settings.store, synchronous=settings.synchronous) as store:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(settings, store))


async def _serve(settings: ProxySettings, store: TraceStore) -> None:
    proxy = Proxy(settings, store)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await proxy.start()
    print(f"proxy serves {settings.model} at {proxy.url or settings.unix.uds}, control at {proxy.control_address}", flush=True)
    await stop.wait()
    await proxy.stop()


def _bind_unix(path: Path, mode: int) -> socket.socket:
    path.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileNotFoundError):
        path.unlink()
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(str(path))
    except OSError as error:
        listener.close()
        raise ConfigError(f"The proxy cannot listen at {path}: {error}. A unix socket path has at most 107 bytes.") from error
    os.chmod(path, mode)
    listener.listen(1024)
    return listener


def _address(listener: socket.socket) -> str:
    if listener.family == socket.AF_UNIX:
        return f"unix:{listener.getsockname()}"
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
