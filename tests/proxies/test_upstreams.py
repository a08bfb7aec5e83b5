"""One contract for every engine client: the scripted one, and vLLM's protocol as the embedded engine
serves it.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress

import numpy as np
import pytest
import torch
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from harnessgym.errors import ConfigError, UpstreamError, UpstreamLost
from harnessgym.message import Sampling
from proxies.app import address_of, listen
from proxies.http_client import Greeting, HttpClient
from proxies.upstream import TokenChunk, Upstream
from proxies.upstreams.scripted import Failure, ScriptedUpstream
from proxies.upstreams.vllm import VllmUpstream
from tests.proxies.conftest import POLICY
from tests.trainers.conftest import fronted
from trainers.engine.engine import build_engine
from trainers.engine.settings import EngineSettings
from trainers.policies.loading import load_policy

pytestmark = pytest.mark.anyio
PROMPT = list(range(5, 25))


@asynccontextmanager
async def served(app: ASGIApp) -> AsyncIterator[str]:
    listener = listen(None, None, "127.0.0.1", 0)
    assert listener is not None
    server = uvicorn.Server(
        uvicorn.Config(app, lifespan="off", log_level="warning", timeout_graceful_shutdown=1)
    )
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield address_of(listener)
    finally:
        server.should_exit = True
        await serving


@pytest.fixture(params=["scripted", "vllm"])
async def upstream(request: pytest.FixtureRequest) -> AsyncIterator[Upstream]:
    if request.param == "scripted":
        yield ScriptedUpstream(
            lambda prompt, sampling: [(sampling.seed or 0) + token for token in range(40)], version=0
        )
        return
    torch.set_num_threads(1)
    engine = build_engine(load_policy(POLICY), max_batch=4)
    with fronted(engine, EngineSettings(model=POLICY, port=0)) as address:
        client = VllmUpstream(address)
        yield client
        client.close()


async def collect(upstream: Upstream, sampling: Sampling) -> list[TokenChunk]:
    async with aclosing(upstream.generate(PROMPT, sampling, salt="s")) as chunks:
        return [chunk async for chunk in chunks]


async def test_chunks_are_consistent_and_the_last_counts_them(upstream: Upstream) -> None:
    chunks = await collect(upstream, Sampling(max_tokens=12, seed=1))
    assert all(len(chunk.ids) == len(chunk.logprobs) == len(chunk.versions) for chunk in chunks)
    assert [chunk.finish_reason is None for chunk in chunks] == [True] * (len(chunks) - 1) + [False]
    assert chunks[-1].prompt_tokens == len(PROMPT)
    assert chunks[-1].completion_tokens == sum(len(chunk.ids) for chunk in chunks) <= 12
    assert {version for chunk in chunks for version in chunk.versions} == {upstream.version}
    assert upstream.logprob_mode == "processed"


async def test_the_seed_fixes_the_answer(upstream: Upstream) -> None:
    one, two, other = [await collect(upstream, Sampling(max_tokens=12, seed=seed)) for seed in (1, 1, 2)]
    ids = [[token for chunk in chunks for token in chunk.ids] for chunks in (one, two, other)]
    assert ids[0] == ids[1] != ids[2]


async def test_scores_agree_with_what_was_sampled(upstream: Upstream) -> None:
    chunks = await collect(upstream, Sampling(max_tokens=12, seed=1))
    ids = [token for chunk in chunks for token in chunk.ids]
    scores = await upstream.score([*PROMPT, *ids])
    assert scores.dtype == np.float32
    assert scores.shape == (len(PROMPT) + len(ids),)
    assert scores[0] == 0.0
    sampled = [logprob for chunk in chunks for logprob in chunk.logprobs]
    np.testing.assert_allclose(scores[len(PROMPT) :], np.array(sampled, dtype=np.float32), atol=1e-4)


async def test_many_at_once_and_some_left_early(upstream: Upstream) -> None:
    async def leave(seed: int) -> None:
        async with aclosing(
            upstream.generate(PROMPT, Sampling(max_tokens=40, seed=seed), salt="s")
        ) as chunks:
            async for _ in chunks:
                break

    whole = [collect(upstream, Sampling(max_tokens=8, seed=seed)) for seed in range(6)]
    answers = await asyncio.gather(*whole, *(leave(seed) for seed in range(6)))
    assert all(chunks is None or chunks[-1].completion_tokens for chunks in answers)
    assert await upstream.healthy()


async def test_a_scripted_engine_fails_as_told() -> None:
    upstream = ScriptedUpstream([[1, 2, 3]], failures=[Failure(2), Failure(0, lost=False)])
    with pytest.raises(UpstreamLost):
        await collect(upstream, Sampling())
    with pytest.raises(UpstreamError):
        await collect(upstream, Sampling())
    assert [chunk.finish_reason for chunk in await collect(upstream, Sampling())] == [None, "stop"]


async def test_an_engine_that_is_gone_or_refuses() -> None:
    gone = VllmUpstream("http://127.0.0.1:9")
    assert not await gone.healthy()
    with pytest.raises(UpstreamLost, match="Nothing answers"):
        await collect(gone, Sampling())
    for status, kind in ((400, UpstreamError), (503, UpstreamLost)):
        async with served(_Fixed(status, b'{"error": "no"}')) as address:
            client = VllmUpstream(address)
            with pytest.raises(kind, match=str(status)):
                await collect(client, Sampling())
            client.close()


@pytest.mark.parametrize("whole", [False, True])
async def test_a_stream_that_breaks_off_is_a_lost_engine(whole: bool) -> None:
    choice = {
        "index": 0,
        "text": "",
        "logprobs": {"token_logprobs": [-1.0]},
        "finish_reason": None,
        "token_ids": [4],
    }
    event = b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"
    async with served(_Fixed(200, event, length=None if whole else 10_000)) as address:
        client = VllmUpstream(address, version=7)
        chunks = client.generate(PROMPT, Sampling(), salt="")
        first = await anext(chunks)
        assert (first.ids, first.versions) == ((4,), (7,))
        with pytest.raises(UpstreamLost):
            await anext(chunks)
        client.close()


def _event(ids: list[int], logprobs: list[float], finish: str | None = None) -> bytes:
    choice = {
        "index": 0,
        "text": "",
        "logprobs": {"token_logprobs": logprobs},
        "finish_reason": finish,
        "token_ids": ids,
    }
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"


async def test_events_that_come_together_are_one_chunk() -> None:
    usage = (
        b'data: {"choices": [], "usage": {"prompt_tokens": 20, "completion_tokens": 4}}\n\ndata: [DONE]\n\n'
    )
    body = _event([4], [-1.0]) + _event([5, 6], [-2.0, -3.0]) + _event([2], [-4.0], "stop") + usage
    async with served(_Fixed(200, body)) as address:
        client = VllmUpstream(address, version=7)
        first, last = await collect(client, Sampling())
        client.close()
    assert (first.ids, first.logprobs, first.versions) == ((4, 5, 6), (-1.0, -2.0, -3.0), (7, 7, 7))
    assert (last.ids, last.finish_reason, last.stop_token, last.completion_tokens) == ((2,), "stop", 2, 4)


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ":"), (", ", ": ")])
async def test_an_engine_may_repeat_its_prompt(separators: tuple[str, str]) -> None:
    choice = {
        "prompt_token_ids": PROMPT,
        "text": '"prompt_token_ids":[1]',
        "logprobs": {"token_logprobs": [-1.0]},
        "token_ids": [4],
    }
    event = {"choices": [{**choice, "finish_reason": None}]}
    body = b"data: " + json.dumps(event, separators=separators).encode() + b"\n\n"
    async with served(_Fixed(200, body)) as address:
        client = VllmUpstream(address)
        chunks = client.generate(PROMPT, Sampling(), salt="")
        assert (await anext(chunks)).ids == (4,)
        await chunks.aclose()
        client.close()


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (_event([4, 5], [-1.0]) + _event([6], [-1.0, -2.0]), "2 ids, 1 logprobs"),
        (_event([4], [-1.0]) + b'data: {"choices": [\n\n', "not JSON"),
        (b'data: {"choices": [{"logprobs": {"token_logprobs": [NaN]}, "token_ids": [1]}]}\n\n', "not JSON"),
        (_event([4], [-1.0]) + b'data: {"error": {"message": "out of memory"}}\n\n', "out of memory"),
        (b'data: {"choices": [{"prompt_token_ids":[5, 6], "token_ids": []}]}\n\n', "another prompt"),
        (b'data: {"choices": [{"prompt_token_ids":[5, 6, "token_ids": 1}}\n\n', "not JSON"),
    ],
)
async def test_an_engine_that_contradicts_itself_is_refused(body: bytes, complaint: str) -> None:
    async with served(_Fixed(200, body)) as address:
        client = VllmUpstream(address)
        with pytest.raises(UpstreamError, match=complaint):
            await collect(client, Sampling())
        client.close()


async def test_the_http_client_uses_a_connection_again_and_replaces_a_stale_one() -> None:
    app = _Fixed(200, b"pong")
    async with served(app) as address:
        client = HttpClient(address)
        for _ in range(3):
            async with client.request("POST", "/ping", b"{}") as response:
                assert (response.status, await response.body()) == (200, b"pong")
        assert len(app.clients) == 1
        assert app.bodies == [b"{}"] * 3
        (idle,) = client._idle
        idle._transport.abort()
        async with client.request("GET", "/ping") as response:
            assert await response.body() == b"pong"
        assert len(app.clients) == 2
        client.close()
    with pytest.raises(ConfigError, match="not an engine's address"):
        HttpClient("ftp://x")


@pytest.mark.parametrize("body", [None, b"no", b"HTTP"], ids=["cancelled", "refused", "malformed"])
async def test_a_greeting_that_fails_leaves_no_connection(body: bytes | None) -> None:
    gone = asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body or b"slow"), body or b""))
        with suppress(ConnectionError):
            await reader.read()
        gone.set()
        writer.close()

    def check(status: int, body: bytes) -> None:
        raise ValueError(body) if body == b"HTTP" else UpstreamLost("refused")

    async with await asyncio.start_server(handle, "127.0.0.1", 0) as server:
        address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        client = HttpClient(address, greeting=Greeting("/hello", check))
        asking = asyncio.create_task(client.request("GET", "/x").__aenter__())
        if body is None:
            await asyncio.sleep(0.3)
            asking.cancel()
        with pytest.raises((asyncio.CancelledError, UpstreamLost, ValueError)):
            await asking
        async with asyncio.timeout(5):
            await gone.wait()


class _Fixed:
    """Always the same response; with `length` it promises more than it sends."""

    def __init__(self, status: int, body: bytes, length: int | None = None) -> None:
        self.status, self.body, self.length = status, body, length
        self.clients: set[tuple[str, int]] = set()
        self.bodies: list[bytes] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.clients.add(tuple(scope["client"]))
        self.bodies.append((await receive())["body"])
        headers = [] if self.length is None else [(b"content-length", str(self.length).encode())]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": self.body, "more_body": self.length is not None})
