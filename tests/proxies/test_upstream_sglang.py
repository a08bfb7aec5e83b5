"""SGLang's `/generate` as its sources document it: a server of fixed replies, since no SGLang runs here.

Shapes, read on 2026-11-21 in https://github.com/sgl-project/sglang:
- the request: `docs/basic_usage/sampling_params.md` and `GenerateReqInput` in
  `python/sglang/srt/managers/io_struct.py` (`input_ids`, `sampling_params`, `return_logprob`,
  `logprob_start_len`, `stream`, `extra_key`);
- the stream: `python/sglang/srt/managers/tokenizer_manager.py`, `_handle_batch_output`: every event repeats
  all `output_ids` and `output_token_logprobs` (`[logprob, id, text]`), unless
  `--incremental-streaming-output` slices them. `_handle_abort_req`: an aborted request ends with `{"type":
  "abort", "message": ...}` and the last token only in `output_ids`;
- `python/sglang/srt/utils/weight_versions.py`: `weight_version`, and spans `weight_versions` of `{version,
  start, end}`.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import numpy as np
import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from harnessgym.errors import UpstreamError, UpstreamLost
from harnessgym.message import Sampling
from harnessgym.store.workers import WorkerRow
from proxies.app import address_of, listen
from proxies.upstream import TokenChunk
from proxies.upstreams.sglang import SglangUpstream
from proxies.workers import connect_upstream
from tests.proxies.conftest import MakeWorld

pytestmark = pytest.mark.anyio
PROMPT = [5, 6, 7]
STOP = {"type": "stop", "matched": 2}


class Sglang:
    """Answers every request alike and keeps what it was asked."""

    def __init__(self, *events: dict[str, Any] | str, status: int = 200, done: bool = True) -> None:
        self.asked: list[dict[str, Any]] = []
        self.events, self.status, self.done = events, status, done
        self.info = {"enable_return_routed_experts": False}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = (await receive())["body"]
        if scope["path"] == "/health":
            await send({"type": "http.response.start", "status": self.status, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        if scope["path"] == "/server_info":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": json.dumps(self.info).encode()})
            return
        assert scope["path"] == "/generate"
        self.asked.append(json.loads(body))
        await send({"type": "http.response.start", "status": self.status, "headers": []})
        if self.asked[-1].get("stream") and self.status == 200:
            for event in self.events:
                await send(
                    {
                        "type": "http.response.body",
                        "body": f"data: {json.dumps(event)}\n\n".encode(),
                        "more_body": True,
                    }
                )
            await send({"type": "http.response.body", "body": b"data: [DONE]\n\n" if self.done else b""})
        else:
            await send({"type": "http.response.body", "body": json.dumps(self.events[0]).encode()})


@asynccontextmanager
async def serving(app: Sglang, version: int = 3) -> AsyncIterator[SglangUpstream]:
    listener = listen(None, None, "127.0.0.1", 0)
    assert listener is not None
    server = uvicorn.Server(
        uvicorn.Config(app, lifespan="off", log_level="warning", timeout_graceful_shutdown=1)
    )
    task = asyncio.create_task(server.serve(sockets=[listener]))
    upstream = connect_upstream(WorkerRow("w", None, "sglang", address_of(listener), version, "ready"))
    assert isinstance(upstream, SglangUpstream)
    try:
        yield upstream
    finally:
        upstream.close()
        server.should_exit = True
        await task


def event(ids: list[int], total: int, finish: dict[str, Any] | None = None, **meta: Any) -> dict[str, Any]:
    """One event with these tokens, when `total` have been sampled."""
    counts = {
        "prompt_tokens": len(PROMPT),
        "completion_tokens": total,
        "cached_tokens": 1,
        "finish_reason": finish,
    }
    logprobs = [[-token / 100, token, None] for token in ids]
    described = {
        "id": "rid",
        "weight_version": "3@policy",
        **counts,
        "output_token_logprobs": logprobs,
        **meta,
    }
    return {"text": "", "output_ids": ids, "meta_info": described}


def streams() -> dict[str, list[dict[str, Any]]]:
    """The same answer as both kinds of stream give it."""
    return {
        "cumulative": [event([11], 1), event([11, 12, 13], 3), event([11, 12, 13, 2], 4, STOP)],
        "incremental": [event([11], 1), event([12, 13], 3), event([2], 4, STOP)],
    }


async def collect(upstream: SglangUpstream, sampling: Sampling | None = None) -> list[TokenChunk]:
    async with aclosing(upstream.generate(PROMPT, sampling or Sampling(), salt="run:3")) as chunks:
        return [chunk async for chunk in chunks]


@pytest.mark.parametrize("kind", ["cumulative", "incremental"])
async def test_both_kinds_of_stream_give_the_same_tokens(kind: str) -> None:
    async with serving(Sglang(*streams()[kind])) as upstream:
        chunks = await collect(upstream)
    assert [chunk.ids for chunk in chunks] == [(11,), (12, 13), (2,)]
    assert [chunk.logprobs for chunk in chunks] == [(-0.11,), (-0.12, -0.13), (-0.02,)]
    assert {version for chunk in chunks for version in chunk.versions} == {3}
    last = chunks[-1]
    assert (last.finish_reason, last.stop_token) == ("stop", 2)
    assert (last.prompt_tokens, last.completion_tokens, last.cached_tokens) == (3, 4, 1)


async def test_what_is_asked() -> None:
    app = Sglang(event([11], 1, {"type": "length", "length": 1}))
    sampling = Sampling(
        temperature=0.7, top_p=0.9, top_k=4, max_tokens=9, stop=("END",), stop_token_ids=(2,), seed=8
    )
    async with serving(app) as upstream:
        await collect(upstream, sampling)
        await collect(upstream)
    first, second = app.asked
    assert (first["input_ids"], first["return_logprob"], first["logprob_start_len"]) == (PROMPT, True, -1)
    assert (first["stream"], first["extra_key"]) == (True, "run:3")
    told = first["sampling_params"]
    assert (told["temperature"], told["top_p"], told["top_k"], told["max_new_tokens"]) == (0.7, 0.9, 4, 9)
    assert (told["stop"], told["stop_token_ids"], told["sampling_seed"]) == (["END"], [2], 8)
    assert second["sampling_params"]["top_k"] == -1
    assert not {"stop", "stop_token_ids", "sampling_seed"} & set(second["sampling_params"])


@pytest.mark.parametrize(
    ("finish", "reason", "stop_token"),
    [
        ({"type": "length", "length": 1}, "length", None),
        ({"type": "stop", "matched": 11}, "stop", 11),
        ({"type": "stop", "matched": "END"}, "stop", None),
        ({"type": "abort", "message": "Abort in waiting queue"}, "abort", None),
    ],
)
async def test_reasons_to_finish(finish: dict[str, Any], reason: str, stop_token: int | None) -> None:
    async with serving(Sglang(event([11], 1, finish))) as upstream:
        (chunk,) = await collect(upstream)
    assert (chunk.finish_reason, chunk.stop_token) == (reason, stop_token)


async def test_versions_by_event_and_by_span() -> None:
    spans = [{"version": "4", "start": 0, "end": 2}, {"version": "5", "start": 2, "end": 4}]
    async with serving(
        Sglang(event([11], 1, weight_version="4"), event([11, 12], 2, STOP, weight_version="5"))
    ) as upstream:
        assert [chunk.versions for chunk in await collect(upstream)] == [(4,), (5,)]
    async with serving(
        Sglang(
            event([11], 1, weight_versions=spans[:1]), event([11, 12, 13, 2], 4, STOP, weight_versions=spans)
        )
    ) as upstream:
        assert [chunk.versions for chunk in await collect(upstream)] == [(4,), (4, 5, 5)]


@pytest.mark.parametrize(
    ("label", "known", "version"), [("default", 0, 0), (None, 7, 7), ("7", 3, 7), ("7@policy", 3, 7)]
)
async def test_a_label_says_the_version_and_the_worker_does_where_there_is_none(
    label: str | None, known: int, version: int
) -> None:
    async with serving(Sglang(event([11], 1, STOP, weight_version=label)), known) as upstream:
        assert [chunk.versions for chunk in await collect(upstream)] == [(version,)]


@pytest.mark.parametrize(("label", "known"), [("default", 3), ("installing", 0), ("installing", 3), ("", 3)])
async def test_tokens_of_an_engine_that_serves_no_version_are_lost(label: str, known: int) -> None:
    spans = [{"version": "4", "start": 0, "end": 1}, {"version": label, "start": 1, "end": 2}]
    async with serving(Sglang(event([11], 1, STOP, weight_version=label)), known) as upstream:
        with pytest.raises(
            UpstreamLost, match=f"serves weights '{label}', but the worker is registered with version {known}"
        ):
            await collect(upstream)
    async with serving(
        Sglang(event([11], 1, weight_versions=spans[:1]), event([11, 12], 2, STOP, weight_versions=spans)),
        known,
    ) as upstream:
        with pytest.raises(UpstreamLost, match="serves weights"):
            await collect(upstream)


@pytest.mark.parametrize(
    ("app", "error", "reason"),
    [
        (Sglang({"error": {"message": "out of memory"}}), UpstreamError, "out of memory"),
        (Sglang(event([11], 3)), UpstreamError, "logprobs of 1 new tokens; it has sampled 3"),
        (Sglang(event([11], 1), done=False), UpstreamLost, "without a finish reason"),
        (Sglang(event([11], 1, {"type": "bored"})), UpstreamError, "unknown reason"),
        (
            Sglang(event([], 0, {"type": "abort", "status_code": 400, "message": "too long"})),
            UpstreamError,
            "too long",
        ),
        (Sglang({"error": {"message": "no"}}, status=400), UpstreamError, "400"),
        (Sglang({"error": {"message": "no"}}, status=503), UpstreamLost, "503"),
    ],
)
async def test_failures(app: Sglang, error: type[Exception], reason: str) -> None:
    async with serving(app) as upstream:
        with pytest.raises(error, match=reason):
            await collect(upstream)


async def test_scores_and_health() -> None:
    scored = {"meta_info": {"input_token_logprobs": [[None, 5, None], [-0.5, 6, None], [-0.25, 7, None]]}}
    app = Sglang(scored)
    async with serving(app) as upstream:
        scores = await upstream.score(PROMPT)
        np.testing.assert_array_equal(scores, np.array([0.0, -0.5, -0.25], dtype=np.float32))
        assert scores.dtype == np.float32
        assert (app.asked[0]["logprob_start_len"], app.asked[0]["sampling_params"]["max_new_tokens"]) == (
            0,
            0,
        )
        with pytest.raises(UpstreamError, match="or other tokens"):
            await upstream.score([5, 6])
        with pytest.raises(UpstreamError, match="temperature 1"):
            await upstream.score(PROMPT, 0.5)
        assert await upstream.healthy()
        app.status = 503
        assert not await upstream.healthy()
    assert not await SglangUpstream("http://127.0.0.1:9").healthy()


class Interrupted(Sglang):
    """Aborts after two tokens; the rest follows behind them."""

    def __init__(self, ids: list[int]) -> None:
        super().__init__()
        self.ids = ids

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/health":
            await super().__call__(scope, receive, send)
            return
        self.asked.append(json.loads((await receive())["body"]))
        given = self.asked[-1]["input_ids"]
        again = given[-2:] == self.ids[:2]
        part = self.ids[2:] if again else self.ids[:2]
        finish = (
            {"type": "stop", "matched": self.ids[-1]}
            if again
            else {"type": "abort", "message": "weights are updated"}
        )
        body = f"data: {json.dumps(event(part, len(part), finish, prompt_tokens=len(given)))}\n\ndata: [DONE]\n\n"
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body.encode()})


async def test_a_sequence_that_is_aborted_goes_on_from_its_tokens(make_world: MakeWorld) -> None:
    async with make_world(upstreams={}) as world:
        ids = world.text("Hello there.<|im_end|>")
        app = Interrupted(ids)
        async with serving(app) as upstream:
            await world.add_worker("s0", upstream)
            session = await world.open()
            reply = await world.chat(session.key, [{"role": "user", "content": "hi"}])
            assert reply.json()["choices"][0]["message"]["content"] == "Hello there."
        completion = world.completion(session, world.calls(session)[0])
        assert list(completion.ids) == ids
        assert len(completion.logprobs or ()) == len(ids)
        assert len(app.asked) == 2
        assert (
            app.asked[1]["sampling_params"]["max_new_tokens"]
            == app.asked[0]["sampling_params"]["max_new_tokens"] - 2
        )
