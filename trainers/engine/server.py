"""The engine's HTTP face: vLLM's completions protocol over one engine thread.

harnessgym engine MODEL_DIR --port 8000

POST /v1/completions   GET /v1/models   GET /health   GET /stats
"""

import asyncio
import ctypes
import json
import logging
import socket
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Any

import torch
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from harnessgym.errors import ConfigError, UpstreamError
from harnessgym.store import TraceStore
from trainers.engine.engine import Engine, build_engine
from trainers.engine.protocol import CompletionRequest, RefusalError, parse_request
from trainers.engine.reply import Reply
from trainers.engine.sequence import Chunk, Sequence, StopMatcher
from trainers.engine.settings import EngineSettings
from trainers.engine.text import Detokenizer
from trainers.policy import Policy, load_policy, load_weights, published_weights
from trainers.weights.agent import WeightAgent, read_newest
from trainers.weights.settings import AgentSettings

log = logging.getLogger(__name__)

_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD = -3, -1
"""Options of glibc's mallopt."""


class Outbox:
    """Carries chunks from the engine's thread to the event loop, waking it once for all that are ready."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ready: deque[tuple[asyncio.Queue[Chunk], Chunk]] = deque()
        self._woken = False

    def queue(self) -> asyncio.Queue[Chunk]:
        """On the event loop: a queue for one request's chunks."""
        self._loop = asyncio.get_running_loop()
        return asyncio.Queue()

    def put(self, queue: asyncio.Queue[Chunk], chunk: Chunk) -> None:
        """From any thread: put a chunk in a queue of the event loop."""
        self._ready.append((queue, chunk))
        if not self._woken and self._loop is not None:
            self._woken = True
            self._loop.call_soon_threadsafe(self._empty)

    def _empty(self) -> None:
        self._woken = False
        while self._ready:
            queue, chunk = self._ready.popleft()
            queue.put_nowait(chunk)


class Server:
    """Routes requests to an engine."""

    def __init__(self, engine: Engine, settings: EngineSettings) -> None:
        self.engine, self.settings = engine, settings
        self.detokenizer = Detokenizer.load(settings.model)
        self.eos = read_eos(settings)
        self.outbox = Outbox()

    def sequence(self, request: CompletionRequest, queue: "asyncio.Queue[Chunk]") -> Sequence:
        """The engine's view of a request. Raises `RefusalError`."""
        sampling = request.sampling(self.engine.rows.kv.length, self.engine.policy.config.vocab_size)
        matcher = None
        if sampling.stop:
            if self.detokenizer is None:
                raise RefusalError("`stop` needs a tokenizer.json in the model folder; use `stop_token_ids`.", param="stop")
            matcher = StopMatcher(sampling.stop, self.detokenizer.stream(request.skip_special_tokens).decode)
        return Sequence(
            request.prompt,
            sampling,
            lambda chunk: self.outbox.put(queue, chunk),
            salt=request.cache_salt or "",
            eos=self.eos,
            matcher=matcher,
        )

    async def completions(self, http: Request) -> Response:
        """`POST /v1/completions`."""
        try:
            try:
                raw = json.loads(await http.body())
            except ValueError as error:
                raise RefusalError(f"The request body is not JSON: {error}.") from error
            request = parse_request(raw, self.settings.names)
            queue = self.outbox.queue()
            sequence = self.sequence(request, queue)
            self.engine.submit(sequence)
        except RefusalError as refusal:
            return JSONResponse(refusal.body(), status_code=refusal.status)
        except UpstreamError as error:
            return JSONResponse(RefusalError(str(error), status=503).body(), status_code=503)
        reply = Reply(request, request.model or self.settings.names[0], self.detokenizer)
        return Completion(self.engine, sequence, queue, reply)

    async def models(self, _: Request) -> Response:
        """`GET /v1/models`."""
        limit = self.engine.rows.kv.length
        card = {"id": self.settings.names[0], "object": "model", "owned_by": "harnessgym", "max_model_len": limit}
        return JSONResponse({"object": "list", "data": [card | {"root": str(self.settings.model), "parent": None}]})

    async def health(self, _: Request) -> Response:
        """`GET /health`: 500 once the engine thread has failed."""
        return Response(status_code=200 if self.engine.failure is None else 500)

    async def stats(self, _: Request) -> Response:
        """`GET /stats`: what the engine does and has done."""
        engine = self.engine
        now: dict[str, Any] = {"version": engine.version, "running": engine.running, "waiting": engine.waiting}
        return JSONResponse({"worker_id": self.settings.worker_id, **now, **asdict(engine.counters)})


class Completion(Response):
    """Sends a sequence's chunks as they come. If the client goes away, the sequence is aborted."""

    def __init__(self, engine: Engine, sequence: Sequence, queue: "asyncio.Queue[Chunk]", reply: Reply) -> None:
        self.status_code, self.background = 200, None
        self._engine, self._sequence, self._queue, self._reply = engine, sequence, queue, reply

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """Send the reply."""
        watcher = asyncio.create_task(self._watch(receive))
        try:
            await (self._stream(send) if self._reply.request.stream else self._whole(send))
        finally:
            watcher.cancel()
            self._engine.abort(self._sequence)

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._engine.abort(self._sequence)

    async def _stream(self, send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        finish = None
        while finish is None:
            chunk = await self._queue.get()
            finish = chunk.finish
            self._reply.feed(chunk)
            body = self._reply.event() + (self._reply.ending() if finish else b"")
            await send({"type": "http.response.body", "body": body, "more_body": finish is None})

    async def _whole(self, send: Send) -> None:
        finish = None
        while finish is None:
            chunk = await self._queue.get()
            finish = chunk.finish
            self._reply.feed(chunk)
        body = self._reply.whole()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


class EngineInstaller:
    """The engine as the weight agent sees it, from the event loop."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def version(self) -> int:
        """Version that is served."""
        return self._engine.version

    async def snapshot(self) -> dict[str, torch.Tensor]:
        """Copies of the weights that are served."""
        return await asyncio.to_thread(published_weights, self._engine.policy)

    async def install(self, weights: dict[str, torch.Tensor], version: int) -> None:
        """Serve other weights; raises `PolicyError` and changes nothing if they do not fit."""
        await asyncio.wrap_future(self._engine.install(weights, version))

    async def check(self) -> None:
        """One forward pass; raises `UpstreamError` if it gives no usable logits."""
        await asyncio.wrap_future(self._engine.check())


def create_app(
    engine: Engine, settings: EngineSettings, address: str = "", stop: Callable[[BaseException], None] | None = None
) -> Starlette:
    """The ASGI application of a started engine, listening at `address`; its lifespan runs the weight agent, if it has one.

    `stop` is called with the error that ended the agent, on the event loop.
    """

    def report(ended: asyncio.Task[None]) -> None:
        error = None if ended.cancelled() else ended.exception()
        if error is not None and stop is not None:
            stop(error)
        elif error is not None:
            log.error("The weight agent of %s ended: %s", settings.worker_id, error)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        agent = None
        if settings.agent is not None:
            follower = WeightAgent(settings.agent, settings.worker_id, address, EngineInstaller(engine))
            agent = asyncio.create_task(follower.run())
            agent.add_done_callback(report)
        yield
        if agent is not None:
            agent.cancel()
            await asyncio.wait([agent])

    server = Server(engine, settings)
    routes = [
        Route("/v1/completions", server.completions, methods=["POST"]),
        Route("/v1/models", server.models),
        Route("/health", server.health),
        Route("/stats", server.stats),
    ]
    return Starlette(routes=routes, lifespan=lifespan)


def read_eos(settings: EngineSettings) -> frozenset[int]:
    """End-of-sequence ids of a model folder: generation_config.json, or else config.json."""
    for name in ("generation_config.json", "config.json"):
        file = settings.model / name
        found = json.loads(file.read_text()).get("eos_token_id") if file.is_file() else None
        if found is not None:
            return frozenset([found] if isinstance(found, int) else found)
    return frozenset()


def load_engine(settings: EngineSettings) -> Engine:
    """The engine that the settings describe, not yet started, with the newest committed version if it follows a policy."""
    torch.set_num_threads(settings.threads)
    policy = load_policy(settings.model, getattr(torch, settings.dtype))
    version = _load_newest(policy, settings.agent) if settings.agent else 0
    return build_engine(
        policy,
        max_batch=settings.max_batch,
        cached_sequences=settings.cached_sequences,
        max_length=settings.max_length,
        prefill_tokens=settings.prefill_tokens,
        seed=settings.seed,
        version=version,
    )


def _load_newest(policy: Policy, agent: AgentSettings) -> int:
    """Load the newest committed version, if there is one; the version that the policy then is."""
    with TraceStore.open(agent.store) as store:
        found = read_newest(store, agent.policy_id)
    if found is None:
        return 0
    load_weights(policy, found[1])
    return found[0].version


def listen(settings: EngineSettings) -> socket.socket:
    """The socket to serve on. Raises `ConfigError` if the address cannot be taken."""
    if settings.fd is not None:
        return socket.socket(fileno=settings.fd)
    try:
        return socket.create_server((settings.host, settings.port), backlog=1024)
    except OSError as error:
        raise ConfigError(f"Cannot listen on {settings.host}:{settings.port}: {error}. Choose another --port.") from error


def keep_memory() -> None:
    """Tell glibc to keep freed blocks: by default each large activation is mapped, zeroed page by page and unmapped again."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(_M_MMAP_THRESHOLD, 1 << 30)
        libc.mallopt(_M_TRIM_THRESHOLD, 1 << 30)


def serve(settings: EngineSettings) -> None:
    """Serve until SIGINT or SIGTERM. Prints one line with the address when it listens.

    Raises `PolicyError` if the policy has a version that cannot be served: no restart mends that. Exits with status 1 if the
    engine's thread fails: a restart does.
    """
    keep_memory()
    listener = listen(settings)
    engine = load_engine(settings)
    errors: list[BaseException] = []

    def stop(error: BaseException) -> None:
        errors.append(error)
        server.should_exit = True

    address = listener.getsockname()
    where = f"http://{address[0]}:{address[1]}" if isinstance(address, tuple) else f"unix:{address}"
    config = uvicorn.Config(
        create_app(engine, settings, where, stop),
        loop="uvloop",
        http="httptools",
        lifespan="on",
        access_log=False,
        log_level="warning",
    )
    config.timeout_graceful_shutdown = 2
    server = uvicorn.Server(config)
    engine.start(stop)
    sys.stdout.write(f"engine {settings.worker_id} serves {settings.names[0]} at {where}\n")
    sys.stdout.flush()
    try:
        server.run(sockets=[listener])
    finally:
        engine.close()
    if engine.failure is not None:
        raise SystemExit(1)
    for error in errors:
        raise error
