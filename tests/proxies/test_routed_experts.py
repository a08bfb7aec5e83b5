"""Routed experts on their way from engines into training rows: what vLLM and SGLang send is read, every token's
experts are stored once, and rows have them at their tokens.

The replies have the form that vLLM 0.32.0 gives on `/inference/v1/generate`
(`entrypoints/scale_out/token_in_token_out/`), and SGLang on `/generate` (`managers/detokenizer_manager.py`).
"""

import asyncio
import base64
import io
import json
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import uvicorn
from sqlalchemy import select
from starlette.types import Receive, Scope, Send

from harnessgym.errors import UpstreamError
from harnessgym.message import Sampling
from harnessgym.routed_experts import ExpertArray, RoutedExperts
from harnessgym.store.tables import routed_experts
from harnessgym.store.workers import WorkerRow
from harnessgym.traces.trajectories import Row, rows_of
from harnessgym.traces.verification.verify import verify
from proxies.app import address_of, listen
from proxies.upstream import TokenChunk
from proxies.upstreams.scripted import Failure, ScriptedUpstream, scripted_experts
from proxies.workers import connect_upstream
from tests.proxies.conftest import MakeWorld, World

pytestmark = pytest.mark.anyio
ROUTING = (3, 2, 8)
"""Layers, experts per token, experts."""
END = "<|im_end|>"
Answer = Callable[[dict[str, Any]], Any]
"""The reply to a request: a JSON value, or a list of the events of a stream."""


class Engine:
    """Answers requests by their paths; others with status 404."""

    def __init__(self, **routes: Answer) -> None:
        self.routes = {f"/{name.replace('_', '/')}": answer for name, answer in routes.items()}
        self.asked: list[tuple[str, dict[str, Any]]] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = (await receive())["body"]
        asked = json.loads(body) if body else {}
        answer = self.routes.get(scope["path"])
        if answer is not None:
            self.asked.append((scope["path"], asked))
        await send({"type": "http.response.start", "status": 200 if answer else 404, "headers": []})
        reply = {} if answer is None else answer(asked)
        events = "".join(f"data: {json.dumps(each)}\n\n" for each in reply) + "data: [DONE]\n\n"
        text = events if isinstance(reply, list) else json.dumps(reply)
        await send({"type": "http.response.body", "body": text.encode()})


@asynccontextmanager
async def asking(engine: Engine, kind: str) -> AsyncIterator[Any]:
    """The upstream of an engine."""
    listener = listen(None, None, "127.0.0.1", 0)
    assert listener is not None
    server = uvicorn.Server(
        uvicorn.Config(engine, lifespan="off", log_level="warning", timeout_graceful_shutdown=1)
    )
    task = asyncio.create_task(server.serve(sockets=[listener]))
    upstream: Any = connect_upstream(WorkerRow("w", None, kind, address_of(listener), 0, "ready"))
    try:
        yield upstream
    finally:
        upstream.close()
        server.should_exit = True
        await task


async def collect(
    upstream: Any, prompt: list[int], sampling: Sampling | None = None, experts_from: int = 0
) -> list[TokenChunk]:
    asked = upstream.generate(prompt, sampling or Sampling(), salt="run:0", experts_from=experts_from)
    async with aclosing(asked) as chunks:
        return [chunk async for chunk in chunks]


def npy(experts: np.ndarray) -> str:
    buffer = io.BytesIO()
    np.save(buffer, experts)
    return base64.b64encode(buffer.getvalue()).decode()


def reporting(asked: dict[str, Any]) -> Any:
    """A completion of a server that reports experts."""
    return completed(asked, scripted_experts([0], *ROUTING))


def generated(asked: dict[str, Any], sampled: list[int], experts: ExpertArray | str | None) -> Any:
    """vLLM's reply: an event for each token."""
    text = npy(experts) if isinstance(experts, np.ndarray) else experts
    assert asked["stream"]
    events: list[dict[str, Any]] = []
    for token in sampled:
        last = token is sampled[-1]
        choice = {
            "index": 0, "token_ids": [token], "finish_reason": "stop" if last else None, "stop_reason": None,
            "logprobs": {"content": [{"token_id": token, "logprob": -token / 8, "rank": 1, "top_logprobs": []}]},
            "routed_experts": text if last else None,
        }  # fmt: skip
        events.append({"request_id": "r", "choices": [choice]})
    events[0]["prompt_token_ids"] = asked["token_ids"]
    usage = {"prompt_tokens": len(asked["token_ids"]), "completion_tokens": len(sampled)}
    return [*events, {"request_id": "r", "choices": [], "usage": usage}]


def completed(asked: dict[str, Any], experts: ExpertArray | None = None) -> Any:
    """vLLM's reply to a completion. Only a whole one has experts."""
    if not asked.get("stream"):
        return {
            "choices": [
                {"index": 0, "text": "", "routed_experts": experts if experts is None else npy(experts)}
            ]
        }
    choice = {"token_ids": [5], "logprobs": {"token_logprobs": [-0.5]}, "finish_reason": "stop"}
    counts = {"prompt_tokens": len(asked["prompt"]), "completion_tokens": 1}
    return [{"choices": [choice]}, {"choices": [], "usage": counts}]


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int32])
async def test_vllm_is_asked_where_it_streams_them(dtype: type) -> None:
    prompt, sampled = [4, 5, 6], [7, 8]
    experts = scripted_experts([*prompt, *sampled][:-1], *ROUTING).astype(dtype)
    engine = Engine(
        inference_v1_generate=lambda asked: generated(asked, sampled, experts), v1_completions=reporting
    )
    sampling = Sampling(temperature=0.5, max_tokens=9, stop=("END",), stop_token_ids=(2,), seed=3)
    async with asking(engine, "vllm") as upstream:
        for _ in range(2):
            chunks = await collect(upstream, prompt, sampling)
    assert [token for chunk in chunks for token in chunk.ids] == sampled
    assert [value for chunk in chunks for value in chunk.logprobs] == [-7 / 8, -1.0]
    last = chunks[-1]
    assert (last.finish_reason, last.stop_token, last.prompt_tokens, last.completion_tokens) == (
        "stop",
        8,
        3,
        2,
    )
    assert all(chunk.routed_experts is None for chunk in chunks[:-1])
    assert last.routed_experts is not None
    assert (last.routed_experts.start, last.routed_experts.end) == (0, 4)
    assert np.array_equal(last.routed_experts.experts, experts)
    (path, probe), (_, asked), _ = engine.asked
    assert (path, probe["prompt"], probe["max_tokens"]) == ("/v1/completions", [0], 1)
    assert asked["sampling_params"] == {
        "max_tokens": 9, "temperature": 0.5, "top_p": 1.0, "top_k": 0, "logprobs": 0, "stop": ["END"],
        "stop_token_ids": [2], "seed": 3,
    }  # fmt: skip
    assert (asked["token_ids"], asked["cache_salt"], asked["stream"]) == (prompt, "run:0", True)


@pytest.mark.parametrize("obeys", [True, False])
async def test_vllm_leaves_out_what_is_known(obeys: bool) -> None:
    """A server that does not know the parameter sends everything, which is as good."""
    prompt, sampled = [4, 5, 6], [7, 8]
    experts = scripted_experts([*prompt, *sampled][:-1], *ROUTING)

    def answer(asked: dict[str, Any]) -> Any:
        start = asked["sampling_params"].get("routed_experts_prompt_start", 0)
        return generated(asked, sampled, experts[start if obeys else 0 :])

    async with asking(Engine(inference_v1_generate=answer, v1_completions=reporting), "vllm") as upstream:
        routed = (await collect(upstream, prompt, experts_from=2))[-1].routed_experts
    assert routed is not None
    assert (routed.start, routed.end) == (2 if obeys else 0, 4)
    assert np.array_equal(routed.experts, experts[routed.start :])


async def test_vllm_cannot_report_more_than_it_computed() -> None:
    experts = scripted_experts([4, 5, 6, 7, 8, 9], *ROUTING)
    engine = Engine(
        inference_v1_generate=lambda asked: generated(asked, [7, 8], experts), v1_completions=reporting
    )
    async with asking(engine, "vllm") as upstream:
        with pytest.raises(UpstreamError, match="experts of 2 tokens too many"):
            await collect(upstream, [4, 5, 6])


async def test_a_vllm_that_reports_none_is_asked_for_completions_until_it_may_have_changed() -> None:
    engine = Engine(v1_completions=completed)
    async with asking(engine, "vllm") as upstream:
        for _ in range(2):
            (chunk,) = await collect(upstream, [4, 5])
            assert (chunk.ids, chunk.routed_experts) == ((5,), None)
        assert [asked.get("stream", False) for _, asked in engine.asked] == [False, True, True]
        engine.routes["/v1/completions"] = reporting
        await upstream.healthy()
        # Without --enable-scale-out vLLM answers with 403 and says so.
        with pytest.raises(UpstreamError, match="status 404"):
            await collect(upstream, [4, 5])


@pytest.mark.parametrize(
    ("experts", "reason"),
    [("no base64!", "no .npy file"), (npy(np.zeros((4, 6), np.uint8)), r"shape \[4, 6\]"),
     (npy(np.full((4, 3, 2), -1)), "from -1 to"), (npy(np.full((4, 3, 2), 1 << 16)), "to 65536")],
)  # fmt: skip
async def test_what_are_no_experts_is_an_error(experts: str, reason: str) -> None:
    engine = Engine(
        inference_v1_generate=lambda asked: generated(asked, [7], experts), v1_completions=reporting
    )
    async with asking(engine, "vllm") as upstream:
        with pytest.raises(UpstreamError, match=reason):
            await collect(upstream, [4, 5, 6, 7])


def sglang(asked: dict[str, Any], experts: str | None) -> Any:
    meta = {
        "prompt_tokens": 3, "completion_tokens": 2, "cached_tokens": 0, "weight_version": "default",
        "output_token_logprobs": [[-0.5, 7, None], [-0.25, 8, None]], "finish_reason": {"type": "length"},
    }  # fmt: skip
    return [{"meta_info": meta | ({} if experts is None else {"routed_experts": experts})}]


async def test_sglang_is_asked_for_them_if_it_records_them() -> None:
    experts = scripted_experts([4, 5, 6, 7], *ROUTING)
    for enabled in (True, False):
        text = base64.b64encode(experts.astype("<i4").tobytes()).decode()
        engine = Engine(
            server_info=lambda _, enabled=enabled: {"enable_return_routed_experts": enabled},
            generate=lambda asked: sglang(asked, text if asked.get("return_routed_experts") else None),  # noqa: B023
        )
        engine.routes["/server_info"] = engine.routes.pop("/server/info")
        async with asking(engine, "sglang") as upstream:
            (chunk,) = await collect(upstream, [4, 5, 6])
            if enabled:
                text = base64.b64encode(experts[2:].astype("<i4").tobytes()).decode()
                (rest,) = await collect(upstream, [4, 5, 6], experts_from=2)
                assert engine.asked[-1][1]["routed_experts_start_len"] == 2
                assert rest.routed_experts is not None
                assert (rest.routed_experts.start, rest.routed_experts.end) == (2, 4)
        assert engine.asked[-1][1].get("return_routed_experts", False) == enabled
        if not enabled:
            assert chunk.routed_experts is None
            continue
        assert chunk.routed_experts is not None
        assert chunk.routed_experts.experts.shape == (4, 1, 6)  # it does not tell layers apart
        assert np.array_equal(chunk.routed_experts.experts, experts.reshape(4, 1, 6))


async def test_numbers_of_another_length_are_an_error() -> None:
    engine = Engine(generate=lambda asked: sglang(asked, base64.b64encode(bytes(4 * 7)).decode()))
    async with asking(engine, "sglang") as upstream:
        with pytest.raises(UpstreamError, match="no int32 numbers of 4 tokens"):
            await collect(upstream, [4, 5, 6])


def scripted(world: World, *answers: str, **options: Any) -> ScriptedUpstream:
    return ScriptedUpstream([world.text(answer + END) for answer in answers], routing=ROUTING, **options)


def stored(world: World) -> list[tuple[int, int]]:
    """The first token and the number of tokens of each call's experts, in order of recording."""
    query = select(routed_experts.c.start, routed_experts.c.tokens).order_by(routed_experts.c.created_at)
    return world.store.read(lambda conn: [tuple(row) for row in conn.execute(query)])


def rows(world: World) -> tuple[Row, ...]:
    return world.store.read(
        lambda conn: rows_of(conn, world.rollout_id, group_id="g", with_experts=True)
    ).rows


def assert_aligned(row: Row) -> None:
    """Every token but the last has the experts that the engine gave it."""
    assert row.experts is not None
    assert row.experts.recorded.tolist() == [True] * (len(row.ids) - 1) + [False]
    assert np.array_equal(row.experts.experts[:-1], scripted_experts(row.ids[:-1].tolist(), *ROUTING))


async def test_a_conversation_stores_each_token_once(make_world: MakeWorld) -> None:
    async with make_world(upstreams={}) as world:
        await world.add_worker("w0", scripted(world, "One.", "Two.", "Three."))
        session = await world.open()
        said = [{"role": "user", "content": "Hello"}]
        for _ in range(3):
            reply = (await world.chat(session.key, said)).json()
            said += [reply["choices"][0]["message"], {"role": "user", "content": "Go on."}]
        calls = world.calls(session)
        ends = [call.prompt_len + (call.completion_len or 0) - 1 for call in calls]
        assert stored(world) == [(start, end - start) for start, end in zip([0, *ends], ends, strict=False)]
        (row,) = rows(world)
        assert_aligned(row)
        report = verify(world.store)
        assert "routed_experts" not in report.kinds
        assert report.checked.routed_tokens == ends[-1]
        without = world.store.read(lambda conn: rows_of(conn, world.rollout_id, group_id="g")).rows
        assert without[0].experts is None


async def test_after_a_restart_of_the_proxy_a_call_stores_those_of_its_whole_prompt(
    make_world: MakeWorld,
) -> None:
    async with make_world(upstreams={}) as world:
        await world.add_worker("w0", scripted(world, "One.", "Two."))
        session = await world.open()
        said = [{"role": "user", "content": "Hello"}]
        reply = (await world.chat(session.key, said)).json()
        await world.stop()
        await world.start()
        said += [reply["choices"][0]["message"], {"role": "user", "content": "Go on."}]
        assert (await world.chat(session.key, said)).status_code == 200
        assert [start for start, _ in stored(world)] == [0, 0]
        (row,) = rows(world)
        assert_aligned(row)
        assert "routed_experts" not in verify(world.store).kinds


async def test_an_answer_of_two_workers_has_the_experts_of_the_last(make_world: MakeWorld) -> None:
    async with make_world(upstreams={}) as world:
        whole = world.text("One two three four five six." + END)

        def rest(prompt: Any, _: Sampling) -> list[int]:
            """The rest of the answer, if the prompt ends with its beginning."""
            known = next(n for n in range(len(whole), -1, -1) if list(prompt)[len(prompt) - n :] == whole[:n])
            return whole[known:]

        upstream = ScriptedUpstream(rest, routing=ROUTING, chunk=1, failures=[Failure(after=3)])
        await world.add_worker("w0", upstream)
        session = await world.open()
        assert (await world.chat(session.key, [{"role": "user", "content": "Hello"}])).status_code == 200
        assert len(upstream.asked) == 2
        (row,) = rows(world)
        assert_aligned(row)


async def test_experts_of_tokens_that_there_are_not_fail_the_call(make_world: MakeWorld) -> None:
    class Wrong(ScriptedUpstream):
        """Reports one token too many."""

        async def generate(self, prompt: Any, sampling: Sampling, *, salt: str, experts_from: int = 0) -> Any:
            async for chunk in super().generate(prompt, sampling, salt=salt, experts_from=experts_from):
                routed = chunk.routed_experts
                yield (
                    chunk
                    if routed is None
                    else replace(chunk, routed_experts=RoutedExperts(2, routed.experts))
                )

    async with make_world(upstreams={}) as world:
        await world.add_worker("w0", Wrong([world.text("One." + END)], routing=ROUTING))
        session = await world.open()
        reply = await world.chat(session.key, [{"role": "user", "content": "Hello"}])
        assert reply.status_code >= 500
        assert "reported the experts of" in reply.text
        assert stored(world) == []
