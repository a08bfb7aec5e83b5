"""The front of an engine: a process without torch and weights that serves vLLM's completions protocol over
HTTP.

POST /v1/completions   GET /v1/models   GET /health   GET /stats

The core starts it as `python -m trainers.engine.front LINK LISTENER PARENT` (two inherited sockets and its
own pid), and it always ends with the core. SIGINT is blocked: the core handles Ctrl-C.
"""

import asyncio
import gc
import itertools
import json
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np
import uvicorn
import uvloop
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from harnessgym.heartbeat import BEAT_S
from harnessgym.process import die_with_parent
from trainers.engine.link import (
    Abort,
    Chunks,
    Hello,
    Ready,
    StatusAnswer,
    StatusQuestion,
    SubmitRefused,
    SubmitSequence,
    ToCore,
    pack,
    receive,
)
from trainers.engine.protocol import CompletionRequest, RefusalError, parse_request
from trainers.engine.reply import EngineReply, FolderDetokenizer
from trainers.engine.sequence import Chunk


class Core:
    """The engine at the other end of the link."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._outbox: list[bytes] = []
        self._keys = itertools.count()
        self._calls: dict[int, asyncio.Queue[Chunk | SubmitRefused]] = {}
        self._questions: dict[int, asyncio.Future[StatusAnswer]] = {}

    def send(self, message: ToCore) -> None:
        """Queue a message. All messages of one event loop iteration are sent together, so the core wakes
        once.
        """
        if not self._outbox:
            asyncio.get_running_loop().call_soon(self._flush)
        self._outbox.append(pack(message))

    def submit(self, request: CompletionRequest, hello: Hello) -> "EngineCall":
        """Start sampling a request's tokens. Raises `RefusalError`."""
        sampling = request.sampling(hello.max_length, hello.vocab_size)
        key = next(self._keys)
        queue = asyncio.Queue[Chunk | SubmitRefused]()
        self._calls[key] = queue
        prompt = np.array(request.prompt, dtype=np.int32).tobytes()
        self.send(
            SubmitSequence(key, prompt, sampling, request.cache_salt or "", request.skip_special_tokens)
        )
        return EngineCall(self, key, queue)

    def abort(self, key: int) -> None:
        """End a call that has not ended."""
        if key in self._calls:
            self.send(Abort(key))

    async def ask(self) -> StatusAnswer:
        """The engine's status."""
        key = next(self._keys)
        answer: asyncio.Future[StatusAnswer] = asyncio.get_running_loop().create_future()
        self._questions[key] = answer
        self.send(StatusQuestion(key))
        return await answer

    def _flush(self) -> None:
        self._writer.write(b"".join(self._outbox))
        self._outbox.clear()

    async def listen(self) -> None:
        """Dispatch the core's messages until it ends."""
        while True:
            try:
                message = await receive(self._reader)
            except EOFError:
                return
            match message:
                case Chunks(chunks):
                    for key, chunk in chunks:
                        (self._calls.pop(key) if chunk.finish else self._calls[key]).put_nowait(chunk)
                case StatusAnswer(key):
                    answer = self._questions.pop(key)
                    if not answer.cancelled():
                        answer.set_result(message)
                case SubmitRefused(key):
                    self._calls.pop(key).put_nowait(message)


class EngineCall:
    """A sequence that the engine samples."""

    def __init__(self, core: Core, key: int, queue: "asyncio.Queue[Chunk | SubmitRefused]") -> None:
        self._core = core
        self._key = key
        self._queue = queue

    async def next(self) -> Chunk | SubmitRefused:
        """The next chunk; a refusal can only come first, and last."""
        return await self._queue.get()

    def abort(self) -> None:
        """End the call, if it has not ended."""
        self._core.abort(self._key)


class Front:
    """Routes requests to the core."""

    def __init__(self, core: Core, hello: Hello) -> None:
        self.core = core
        self.hello = hello
        self.detokenizer = FolderDetokenizer.load(hello.model)

    async def completions(self, http: Request) -> Response:
        """`POST /v1/completions`."""
        try:
            try:
                raw = json.loads(await http.body())
            except ValueError as error:
                raise RefusalError(f"The request body is not JSON: {error}.") from error
            request = parse_request(raw, self.hello.names)
            if request.stop_strings and self.detokenizer is None:
                raise RefusalError(
                    "`stop` needs a tokenizer.json in the model folder; use `stop_token_ids`.", param="stop"
                )
            call = self.core.submit(request, self.hello)
        except RefusalError as refusal:
            return JSONResponse(refusal.body(), status_code=refusal.status)
        return Completion(call, EngineReply(request, request.model or self.hello.names[0], self.detokenizer))

    async def models(self, _: Request) -> Response:
        """`GET /v1/models`."""
        hello = self.hello
        card = {
            "id": hello.names[0],
            "object": "model",
            "owned_by": "harnessgym",
            "max_model_len": hello.max_length,
        }
        return JSONResponse({"object": "list", "data": [card | {"root": str(hello.model), "parent": None}]})

    async def health(self, _: Request) -> Response:
        """`GET /health`: 500 once the engine thread has failed."""
        return Response(status_code=500 if (await self.core.ask()).failed else 200)

    async def stats(self, _: Request) -> Response:
        """`GET /stats`: the engine's load and counters."""
        return JSONResponse({"worker_id": self.hello.worker_id, **(await self.core.ask()).stats})


class Completion(Response):
    """Sends a call's chunks as they come. If the client goes away, the call is aborted."""

    def __init__(self, call: EngineCall, reply: EngineReply) -> None:
        self.status_code = 200
        self.background = None
        self._call = call
        self._reply = reply

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the reply, or status 503 if the engine has stopped."""
        watcher = asyncio.create_task(self._watch(receive))
        try:
            first = await self._call.next()
            if isinstance(first, SubmitRefused):
                refusal = RefusalError(first.reason, status=503)
                await JSONResponse(refusal.body(), status_code=refusal.status)(scope, receive, send)
            elif self._reply.request.stream:
                await self._stream(first, send)
            else:
                await self._whole(first, send)
        finally:
            watcher.cancel()
            self._call.abort()

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._call.abort()

    async def _chunks(self, first: Chunk) -> AsyncIterator[Chunk]:
        chunk: Chunk | SubmitRefused = first
        while isinstance(chunk, Chunk):
            yield chunk
            if chunk.finish:
                return
            chunk = await self._call.next()

    async def _stream(self, first: Chunk, send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        async for chunk in self._chunks(first):
            self._reply.feed(chunk)
            body = self._reply.event() + (self._reply.ending() if chunk.finish else b"")
            # Let the other replies of this step render before any is sent: a client with several calls is
            # then woken once, not once per call.
            await asyncio.sleep(0)
            await send({"type": "http.response.body", "body": body, "more_body": chunk.finish is None})

    async def _whole(self, first: Chunk, send: Send) -> None:
        async for chunk in self._chunks(first):
            self._reply.feed(chunk)
        body = self._reply.whole()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


async def serve(link: socket.socket, listener: socket.socket) -> None:
    """Serve until SIGTERM or until the core ends."""
    reader, writer = await asyncio.open_unix_connection(sock=link)
    core = Core(reader, writer)
    try:
        hello = await receive(reader)
    except EOFError:
        return
    assert isinstance(hello, Hello)

    async def listen() -> None:
        try:
            await core.listen()
        finally:
            server.should_exit = True

    async def keep_asking() -> None:
        """Query the status periodically: the core's heartbeat depends on it, so a front that hangs is
        noticed.
        """
        while True:
            await core.ask()
            await asyncio.sleep(BEAT_S / 2)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        listening = asyncio.create_task(listen())
        asking = asyncio.create_task(keep_asking())
        core.send(Ready())
        yield
        listening.cancel()
        asking.cancel()

    front = Front(core, hello)
    routes = [
        Route("/v1/completions", front.completions, methods=["POST"]),
        Route("/v1/models", front.models),
        Route("/health", front.health),
        Route("/stats", front.stats),
    ]
    app = Starlette(routes=routes, lifespan=lifespan)
    config = uvicorn.Config(app, http="httptools", lifespan="on", access_log=False, log_level="warning")
    config.timeout_graceful_shutdown = 2
    server = uvicorn.Server(config)
    gc.freeze()
    await server.serve(sockets=[listener])


def main() -> None:
    """Entry point."""
    link, listener, parent = (int(argument) for argument in sys.argv[1:])
    die_with_parent(parent)
    uvloop.run(serve(socket.socket(fileno=link), socket.socket(fileno=listener)))


if __name__ == "__main__":
    main()
