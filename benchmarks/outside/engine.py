"""A stand-in for a vLLM server: vLLM's routes, the embedded engine's computing, the run's real weights.

    python -m benchmarks.outside.engine MODEL_DIR LEDGER PARENT_PID

It speaks what the weight agent and the proxy ask of vLLM 0.32 in its development mode: completions that say
nothing of versions, a "weight version", pausing by abortion, the calls of the worker extension. Like vLLM it
knows weights, not versions. It writes into a ledger which weights sampled each completion, and what they were
called: what the record says can be held against that. The first line it prints is its address.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import uvicorn
from safetensors import SafetensorError
from safetensors.torch import load_file
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from torch import Tensor

from harnessgym.errors import HarnessGymError
from harnessgym.process import die_with_parent
from harnessgym.tokens import hash_ids
from trainers.engine import EngineSettings
from trainers.engine.protocol import CompletionRequest, RefusalError, parse_request
from trainers.engine.reply import EngineReply
from trainers.engine.router import read_eos
from trainers.engine.sequence import Chunk, Sequence
from trainers.engine.server import listen, load_engine
from trainers.weights.installers.api import digests

_CHECK = "check:"
"""How the cache salt of an agent's own question begins."""


class PlainReply(EngineReply):
    """Without the labels that only the embedded engine gives."""

    def _choice(self, chunks: Any, text: str, *, first: bool) -> dict[str, Any]:
        choice = super()._choice(chunks, text, first=first)
        del choice["policy_versions"]
        return choice


class StandIn:
    """The server. `serial` counts changes of weights; the engine under it takes it for a version."""

    def __init__(self, model: Path, ledger: Path) -> None:
        self.settings = EngineSettings(model=model, port=0, served_model_name="policy", max_length=512)
        self.engine = load_engine(self.settings)
        self._eos, self._ledger = read_eos(model), ledger.open("a", buffering=1)
        self.label, self.serial = "default", 0
        self._held: dict[str, Tensor] = self.engine.policy.published()
        self._before: dict[str, Tensor] | None = None
        self._next: dict[str, Tensor] | None = None
        self._running: set[Sequence] = set()
        self._open = asyncio.Event()
        self._open.set()
        self._note({"serial": 0, "label": "0@"})
        self.engine.start()

    def app(self) -> Starlette:
        """Its routes."""
        posts = {
            "/pause": self.pause,
            "/resume": self.resume,
            "/collective_rpc": self.call,
            "/reset_prefix_cache": self.reset,
            "/update_weight_version": self.relabel,
            "/v1/completions": self.complete,
        }
        gets = {"/weight_info": self.info, "/health": self.health}
        routes = [Route(path, answer, methods=["POST"]) for path, answer in posts.items()]
        return Starlette(routes=[*routes, *(Route(path, answer) for path, answer in gets.items())])

    async def info(self, _: Request) -> Response:
        """Which weights it serves, as it was told."""
        return JSONResponse({"weight_version": self.label})

    async def health(self, _: Request) -> Response:
        """It lives."""
        return Response(status_code=500 if self.engine.failure else 200)

    async def pause(self, _: Request) -> Response:
        """End what is in flight; what comes waits."""
        self._open.clear()
        for sequence in list(self._running):
            self.engine.abort(sequence)
        return JSONResponse({"status": "paused"})

    async def resume(self, _: Request) -> Response:
        """Let calls begin."""
        self._open.set()
        return JSONResponse({"status": "resumed"})

    async def call(self, http: Request) -> Response:
        """A method of the worker extension."""
        body = await http.json()
        try:
            await getattr(self, body["method"])(*body.get("args", ()))
        except (AssertionError, OSError, HarnessGymError, SafetensorError) as error:
            return JSONResponse({"results": [{"error": repr(error), "reason": "unfit"}]})
        return JSONResponse({"results": [{}]})

    async def harnessgym_prepare(self, path: str, expected: str) -> None:
        """Read a version's file."""
        found = load_file(path)
        assert digests(found) == json.loads(expected), f"{path} is not what was published"
        self._next = found

    async def harnessgym_swap(self) -> None:
        """Serve it."""
        assert self._next is not None
        self._before, self._held, self._next = self._held, self._next, None
        await self._install()

    async def harnessgym_back(self) -> None:
        """Serve what was served before."""
        assert self._before is not None
        self._held, self._before = self._before, None
        await self._install()

    async def _install(self) -> None:
        self.serial += 1
        await asyncio.wrap_future(self.engine.install(self._held, self.serial))

    async def reset(self, _: Request) -> Response:
        """The engine forgets by itself what other weights computed."""
        return JSONResponse({"success": True})

    async def relabel(self, http: Request) -> Response:
        """Be told what the weights are called."""
        self.label = (await http.json())["new_version"]
        self._note({"serial": self.serial, "label": self.label})
        return JSONResponse({"success": True, "new_version": self.label})

    async def complete(self, http: Request) -> Response:
        """`POST /v1/completions`."""
        try:
            request = parse_request(await http.json(), self.settings.names)
            sampling = request.sampling(self.engine.rows.cache.length, self.engine.policy.vocabulary)
        except RefusalError as refusal:
            return JSONResponse(refusal.body(), status_code=refusal.status)
        await self._open.wait()
        loop, chunks = asyncio.get_running_loop(), asyncio.Queue[Chunk]()

        def deliver(chunk: Chunk) -> None:
            loop.call_soon_threadsafe(chunks.put_nowait, chunk)

        sequence = Sequence(request.prompt, sampling, deliver, salt=request.cache_salt or "", eos=self._eos)
        self._running.add(sequence)
        self.engine.submit(sequence)
        pieces = self._pieces(request, sequence, chunks)
        if request.stream:
            return StreamingResponse(pieces, media_type="text/event-stream")
        whole = [piece async for piece in pieces]
        return Response(whole[-1], media_type="application/json")

    async def _pieces(
        self, request: CompletionRequest, sequence: Sequence, chunks: "asyncio.Queue[Chunk]"
    ) -> AsyncIterator[bytes]:
        """Events of a stream, or the whole reply."""
        reply, given = PlainReply(request, "policy", None), list[Chunk]()
        try:
            while True:
                chunk = await chunks.get()
                reply.feed(chunk)
                given.append(chunk)
                if request.stream:
                    yield reply.event()
                if chunk.finish:
                    break
            if chunk.finish != "abort" and not (request.cache_salt or "").startswith(_CHECK):
                self._note(_line(request, given))
            yield reply.ending() if request.stream else reply.whole()
        finally:
            self._running.discard(sequence)
            self.engine.abort(sequence)

    def _note(self, line: dict[str, Any]) -> None:
        self._ledger.write(json.dumps(line) + "\n")


def _line(request: CompletionRequest, chunks: list[Chunk]) -> dict[str, Any]:
    """Of the ledger, about a completion that came to its end."""
    return {
        "prompt": hash_ids(request.prompt),
        "ids": [token for chunk in chunks for token in chunk.ids],
        "logprobs": [value for chunk in chunks for value in chunk.logprobs],
        "serials": sorted({chunk.version for chunk in chunks if chunk.ids}),
    }


async def serve(model: Path, ledger: Path) -> None:
    """Serve until killed."""
    server = StandIn(model, ledger)
    listener = listen(server.settings)
    print("http://{}:{}".format(*listener.getsockname()), flush=True)
    await uvicorn.Server(uvicorn.Config(server.app(), log_level="warning")).serve(sockets=[listener])


if __name__ == "__main__":
    die_with_parent(int(sys.argv[3]))
    asyncio.run(serve(Path(sys.argv[1]), Path(sys.argv[2])))
