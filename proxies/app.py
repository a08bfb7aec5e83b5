"""The proxy process: its settings, its listeners, and how its parts are put together.

    HARNESSGYM_CONTROL_KEY=KEY harnessgym proxy --store URL --run_id RUN --policy FOLDER --port 8100 \
    --control_port 8101

Its whole state is in the store, so it may be killed and started again at any time. Its sockets are inherited,
unix or TCP.
"""

import asyncio
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

import uvicorn
import uvloop
from starlette.types import ASGIApp

from harnessgym import heartbeat
from harnessgym.config import Config
from harnessgym.config.control_key import ControlKey, environment_field
from harnessgym.engine_timeouts import EngineTimeouts
from harnessgym.errors import ConfigError
from harnessgym.store import workers
from harnessgym.store.trace_store import Synchronous, TraceStore
from proxies import garbage
from proxies.control import Control
from proxies.dialects import DIALECTS, load_dialect
from proxies.gateway import Gateway
from proxies.http_protocol import PlainHttpProtocol
from proxies.language import PolicyLanguage
from proxies.otlp.receiver import SpanIntake
from proxies.recorder import Recorder
from proxies.relay import Relay, RelayLimits
from proxies.replaying import playback_of
from proxies.served_policies import ServedPolicies, ServedPolicy
from proxies.session import SessionTable
from proxies.upstreams.replay import ReplayUpstream
from proxies.workers import Connect, WorkerTable, connect_upstream

_BACKLOG = 1_024
_BYTES_PER_TOKEN = 64
_SMALLEST_BODY = 4 << 20
"""The `max_body` that a proxy has unless it is given, see `ProxySettings`."""


def listen(
    fd: int | None, uds: Path | None, host: str, port: int | None, *, mode: int = 0o600
) -> socket.socket | None:
    """A listening socket: the inherited `fd`, else a unix socket with file mode `mode`, else a TCP port. None
    if none of them is given. Raises `ConfigError` if it cannot listen.
    """
    if fd is not None:
        return socket.socket(fileno=fd)
    if uds is not None:
        return _listen_unix(uds, mode)
    if port is None:
        return None
    # The protocol must be named: asyncio turns off Nagle's algorithm (40 ms per reply) only for sockets whose
    # protocol is IPPROTO_TCP.
    listener = socket.socket(
        socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP
    )
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise ConfigError(f"The proxy cannot listen at {host}:{port}: {error}.") from error
    listener.listen(_BACKLOG)
    return listener


def address_of(listener: socket.socket) -> str:
    """`http://host:port` or `unix:/path`."""
    if listener.family == socket.AF_UNIX:
        return f"unix:{listener.getsockname()}"
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _listen_unix(path: Path, mode: int) -> socket.socket:
    path.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileNotFoundError):
        path.unlink()
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(str(path))
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"The proxy cannot listen at {path}: {error}. A unix socket path has at most 107 bytes."
        ) from error
    os.chmod(path, mode)
    listener.listen(_BACKLOG)
    return listener


_SHUTDOWN_S = 3.0


class PolicySettings(Config):
    """One of several policies behind a proxy."""

    id: str
    """Its id in the store."""
    name: str
    """The model name under which harnesses request it."""
    path: Path
    """Its model folder."""
    parser: str = "auto"
    """Parser of its answers."""


class ProxySettings(EngineTimeouts):
    """One proxy process. It listens for harnesses on TCP and on a unix socket, for control on a third
    socket.
    """

    store: str
    """URL of the trace store, which must exist."""
    synchronous: Synchronous = "NORMAL"
    """FULL survives power loss, at the price of a disk flush per commit."""
    run_id: str
    """The run whose workers are used."""
    policy: Path
    """Model folder: tokenizer.json, tokenizer_config.json, chat template."""
    parser: str = "auto"
    """Parser of the policy's answers: auto (the one that reads what the chat template writes), a name
    (deepseek, gemma, glm, harmony, hermes, kimi, llama3, minimax, mistral, pythonic, qwen3_coder, text) or
    `module:Class`."""
    renderer: str = "auto"
    """How requests become the policy's tokens: auto, template, family or `module:Class`."""
    served_model_name: str = "policy"
    """Name under which harnesses find the policy."""
    policies: tuple[PolicySettings, ...] = ()
    """All policies, if there are several; the one at `policy` comes first."""
    host: str = "127.0.0.1"
    """Where harnesses connect over TCP."""
    port: int | None = None
    """TCP port for harnesses; 0 takes a free one."""
    fd: int | None = None
    """Inherited listening socket instead of host and port: connections queue there while the proxy
    restarts."""
    uds: Path | None = None
    """Unix socket for sandboxes, in a directory of its own: mount the directory, not the socket."""
    uds_fd: int | None = None
    """Inherited listening socket instead of `uds`."""
    control_host: str = "127.0.0.1"
    """Where the control routes listen over TCP."""
    control_port: int | None = None
    """TCP port of the control routes; 0 takes a free one."""
    control_uds: Path | None = None
    """Unix socket of the control routes, readable by this user alone. Never mount its directory into a
    sandbox."""
    control_fd: int | None = None
    """Inherited listening socket instead of the other two."""
    control_key: ControlKey = environment_field()
    """Bearer key of the control routes; HARNESSGYM_CONTROL_KEY in the environment if not given."""
    max_length: int = 32_768
    """Longest prompt plus completion of a call, in tokens."""
    max_body: int | None = None
    """Largest request body, in bytes; by default 64 for each token that a prompt may have, at least 4 MiB."""
    max_in_flight: int = 1_024
    """Most calls in flight; further ones are refused as overload."""
    keepalive_s: float = 10.0
    """Seconds without data after which a stream gets a keep-alive."""
    disconnect_grace_s: float = 5.0
    """How long a call runs on after its last client left."""
    client_wait_s: float = 60.0
    """Seconds in which a client must have sent its request's head, then its body, and read what is sent to
    it."""
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
        self,
        settings: ProxySettings,
        store: TraceStore,
        *,
        language: PolicyLanguage | None = None,
        connect: Connect | None = None,
    ) -> None:
        """`language` replaces the policy folder's language, `connect` the registered kinds of worker."""
        self.settings = settings
        policies = _served(settings, language)
        self._store = store
        self.recorder = Recorder(store)
        self.workers = WorkerTable(
            connect or (lambda row: connect_upstream(row, policies.by_id(row.policy_id).language)),
            wait_s=settings.worker_wait_s,
            replay=ReplayUpstream(lambda name: playback_of(store, name, policies.read)),
            first_policy=policies.first.id,
            timeouts=settings,
        )
        self.sessions = SessionTable(store, policies.read)
        limits = RelayLimits(
            settings.served_model_name,
            settings.run_id,
            settings.max_length,
            settings.max_in_flight,
            settings.disconnect_grace_s,
            settings.max_body or max(_SMALLEST_BODY, _BYTES_PER_TOKEN * settings.max_length),
        )
        self.relay = Relay(self.recorder, self.workers, policies, limits)
        spans = SpanIntake(store, self.sessions, self.recorder)
        dialects = [load_dialect(name) for name in DIALECTS]
        self._gateway = Gateway(
            self.sessions,
            self.relay,
            self.recorder,
            dialects,
            settings.keepalive_s,
            settings.client_wait_s,
            spans,
        )
        self._control = Control(
            settings.control_key,
            settings.run_id,
            self.sessions,
            self.workers,
            self.relay,
            self.recorder,
            spans,
        )
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
        settings = self.settings
        tcp = listen(settings.fd, None, settings.host, settings.port)
        unix = listen(settings.uds_fd, settings.uds, "", None, mode=0o666)
        control = listen(
            settings.control_fd, settings.control_uds, settings.control_host, settings.control_port
        )
        if control is None or (tcp is None and unix is None):
            raise ConfigError(
                "The proxy needs a control listener and one for harnesses: give ports, unix sockets or "
                "descriptors."
            )
        self.url = self._control.url = None if tcp is None else address_of(tcp)
        self.control_address = address_of(control)
        await self._listen(self._gateway, [listener for listener in (tcp, unix) if listener is not None])
        await self._listen(self._control.app(), [control])

    async def stop(self) -> None:
        """Stop listening, record the calls in flight, close the workers. The store stays open."""
        # The servers only stop accepting here. They wait for their open responses, and these end when the
        # relay has settled their calls.
        for server in self._servers:
            server.should_exit = True
        await self.relay.close(self.sessions.open())
        await asyncio.gather(*self._serving)
        self.relay.threads.close()
        self.recorder.flush()
        self.workers.close()

    async def _listen(self, app: ASGIApp, sockets: list[socket.socket]) -> None:
        config = uvicorn.Config(
            app,
            http=type("HttpProtocol", (PlainHttpProtocol,), {"head_s": self.settings.client_wait_s}),
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


def _served(settings: ProxySettings, language: PolicyLanguage | None) -> ServedPolicies:
    """The policies of a proxy. `language` replaces the language of each."""

    @cache
    def of_folder(folder: Path, parser: str) -> PolicyLanguage:
        return language or PolicyLanguage.of_policy(folder, parser, settings.renderer)

    if not settings.policies:
        return ServedPolicies.alone(of_folder(settings.policy, settings.parser), settings.served_model_name)
    return ServedPolicies(
        [ServedPolicy.of(each.name, of_folder(each.path, each.parser), each.id) for each in settings.policies]
    )


class _Server(uvicorn.Server):
    """A server that leaves signals to the process, since two of them share it."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def serve(settings: ProxySettings) -> None:
    """Run a proxy until SIGTERM or SIGINT. Prints one line when it listens."""
    garbage.collect_little()
    store = TraceStore.open(settings.store, synchronous=settings.synchronous)
    with store, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(settings, store))


async def _serve(settings: ProxySettings, store: TraceStore) -> None:
    proxy = Proxy(settings, store)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await proxy.start()
    heartbeat.follow(asyncio.get_running_loop())
    print(  # noqa: T201 - the line is for whoever started the process
        f"proxy serves {settings.served_model_name} at {proxy.url or settings.uds}, control at "
        f"{proxy.control_address}",
        flush=True,
    )
    collecting = asyncio.create_task(garbage.collect(lambda: proxy.relay.runner.in_flight > 0))
    await stop.wait()
    collecting.cancel()
    await proxy.stop()
