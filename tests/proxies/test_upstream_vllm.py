"""A real vLLM behind a real proxy: its CPU build serves a 135M model in float32. Run with
HARNESSGYM_REQUIRE=vllm; minutes.

What is sampled is compared with transformers' own logprobs of the same tokens, never with another engine's
choice of tokens.
"""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sqlalchemy import select

from harnessgym.message import Message, Sampling
from harnessgym.proxy_client import ControlClient, OpenedSession
from harnessgym.store import policies
from harnessgym.store.policies import PolicyVersion
from harnessgym.store.tables import rollouts
from harnessgym.store.workers import WorkerRow
from harnessgym.traces.verification.verify import verify
from proxies.app import Proxy
from proxies.language import PolicyLanguage
from proxies.upstream import TokenChunk
from proxies.upstreams.vllm import VllmUpstream
from proxies.workers import connect_upstream
from tests.proxies.conftest import KEY, MakeWorld, World
from tests.support import vllm_cpu

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.vllm,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(
        "vllm" not in os.environ.get("HARNESSGYM_REQUIRE", ""),
        reason="installs and starts a vLLM of its own, which takes minutes: HARNESSGYM_REQUIRE=vllm runs it",
    ),
]
TOLERANCE = 1e-3
"""Largest difference of a logprob in float32; 4e-5 was measured."""
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_price",
            "description": "Price of an item.",
            "parameters": {"type": "object", "properties": {"item": {"type": "string"}}},
        },
    }
]
SHOTS = [
    {"role": "system", "content": "You answer by calling the tool."},
    {"role": "user", "content": "What does the red lamp cost?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "a",
                "type": "function",
                "function": {"name": "get_price", "arguments": '{"item": "red lamp"}'},
            }
        ],
    },
    {"role": "tool", "content": "31", "tool_call_id": "a"},
    {"role": "assistant", "content": "It costs 31."},
    {"role": "user", "content": "What does the green chair cost?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "b",
                "type": "function",
                "function": {"name": "get_price", "arguments": '{"item": "green chair"}'},
            }
        ],
    },
    {"role": "tool", "content": "74", "tool_call_id": "b"},
    {"role": "assistant", "content": "It costs 74."},
    {"role": "user", "content": "What does the blue table cost?"},
]


@pytest.fixture(scope="module")
def address(vllm: vllm_cpu.Server) -> str:
    """A vLLM server with the weights of the folder."""
    if vllm.label() != "default":
        vllm.restart()
    return vllm.address


@pytest.fixture(scope="module")
def model() -> Any:
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    return AutoModelForCausalLM.from_pretrained(vllm_cpu.MODEL, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def smol(address: str) -> PolicyLanguage:
    return PolicyLanguage.of_policy(vllm_cpu.MODEL)


@asynccontextmanager
async def upstream_at(address: str) -> AsyncIterator[VllmUpstream]:
    upstream = connect_upstream(WorkerRow("v0", None, "vllm", address, 0, "ready"))
    assert isinstance(upstream, VllmUpstream)
    try:
        yield upstream
    finally:
        upstream.close()


@asynccontextmanager
async def proxied(world: World, address: str) -> AsyncIterator[World]:
    """The world with a proxy whose policy is the one that vLLM serves."""
    policy_id = world.store.read(lambda conn: conn.execute(select(rollouts.c.policy_id)).scalar_one())
    version = PolicyVersion(0, None, "full", "", 0, "", 0, True, False)
    world.store.write(lambda conn: policies.publish(conn, policy_id, version))
    await world.stop()
    settings = {"policy": vllm_cpu.MODEL, "max_length": 2_000, "disconnect_grace_s": 0.2}
    settings |= {"first_token_s": 240.0, "idle_s": 240.0, "probe_s": 60.0}  # vLLM on a busy machine
    world.proxy = Proxy(world.settings.model_copy(update=settings), world.store)
    await world.proxy.start()
    world.control = ControlClient(world.proxy.control_address, KEY)
    await world.control.register("v0", address, 0, kind="vllm")
    yield world


async def collect(
    upstream: VllmUpstream, prompt: list[int], sampling: Sampling, salt: str = "s"
) -> list[TokenChunk]:
    async with aclosing(upstream.generate(prompt, sampling, salt=salt)) as chunks:
        return [chunk async for chunk in chunks]


def ids_of(chunks: list[TokenChunk]) -> list[int]:
    return [token for chunk in chunks for token in chunk.ids]


def check_recorded(world: World, session: OpenedSession, model: Any, temperature: float = 1.0) -> int:
    """Compare every call's logprobs with the model's own. Returns how many tokens there were."""
    total = 0
    for call in world.calls(session):
        completion = world.completion(session, call)
        assert completion.logprobs is not None
        assert call.usage["completion_tokens"] == len(completion.ids)
        assert call.usage["prompt_tokens"] == call.prompt_len == len(world.prompt(session, call))
        ids = list(completion.ids)
        expected = vllm_cpu.logprobs_under(model, world.prompt(session, call), ids, temperature)
        np.testing.assert_allclose(completion.logprobs, expected.numpy(), atol=TOLERANCE)
        total += len(completion.ids)
    return total


async def test_a_tool_call_its_result_and_the_answer(make_world: MakeWorld, address: str, model: Any) -> None:
    async with make_world(upstreams={}) as plain, proxied(plain, address) as world:
        session = await world.open(sampling={"max_tokens": 48, "seed": 1})
        # The engine would compute the prompt of twelve at once twelve times; then it has most of it.
        await world.chat(session.key, SHOTS, tools=TOOLS, max_tokens=1)
        reply = (await world.chat(session.key, SHOTS, tools=TOOLS, n=12)).json()
        called = [choice["message"] for choice in reply["choices"] if choice["finish_reason"] == "tool_calls"]
        assert called, reply
        result = {"role": "tool", "content": "58", "tool_call_id": called[0]["tool_calls"][0]["id"]}
        second = await world.chat(session.key, [*SHOTS, called[0], result], tools=TOOLS)
        assert second.json()["choices"][0]["finish_reason"] in ("stop", "length", "tool_calls")
        calls = world.calls(session)
        siblings = {call.id for call in calls[1:13]}
        assert calls[-1].parent_call_id in siblings
        assert check_recorded(world, session, model) > 100
        await world.control.seal(session.session_id)
        assert verify(world.store).findings == ()


class OnGenerate(VllmUpstream):
    """Asks where vLLM streams routed experts, which its CPU build cannot report."""

    async def _route(self) -> str:
        return "/inference/v1/generate"


async def test_both_routes_give_the_same_answer(address: str, smol: PolicyLanguage, model: Any) -> None:
    prompt = list(smol.renderer.render((Message("user", "Name three colours."),), ()))
    sampling = Sampling(max_tokens=24, temperature=0.8, seed=7, stop_token_ids=smol.stop_token_ids)
    other = OnGenerate(address)
    async with upstream_at(address) as upstream:
        found = [await collect(each, prompt, sampling) for each in (upstream, other)]
        stopped = [
            await collect(each, prompt, Sampling(max_tokens=24, temperature=0.8, seed=7, stop=(" ",)))
            for each in (upstream, other)
        ]
    other.close()
    assert ids_of(found[0]) == ids_of(found[1])
    sampled = [logprob for chunk in found[1] for logprob in chunk.logprobs]
    expected = vllm_cpu.logprobs_under(model, prompt, ids_of(found[1]), 0.8)
    np.testing.assert_allclose(sampled, expected.numpy(), atol=TOLERANCE)
    for chunks in (found, stopped):
        ends = [(each[-1].finish_reason, each[-1].stop_token, each[-1].prompt_tokens) for each in chunks]
        assert ends[0] == ends[1]
        assert chunks[0][-1].completion_tokens == chunks[1][-1].completion_tokens == len(ids_of(chunks[1]))


@pytest.mark.parametrize("temperature", [0.6, 1.4])
async def test_logprobs_are_of_the_distribution_that_was_sampled_from(
    make_world: MakeWorld, address: str, model: Any, temperature: float
) -> None:
    async with make_world(upstreams={}) as plain, proxied(plain, address) as world:
        session = await world.open(sampling={"temperature": temperature, "max_tokens": 40, "seed": 2})
        await world.chat(session.key, [{"role": "user", "content": "Tell me about Paris."}], n=3)
        assert check_recorded(world, session, model, temperature) > 20


async def test_seeds_fix_answers_and_scores_agree_with_them(address: str, smol: PolicyLanguage) -> None:
    prompt = smol.renderer.render((Message("user", "Name a colour."),), ())
    async with upstream_at(address) as upstream:
        runs = [await collect(upstream, prompt, Sampling(max_tokens=12, seed=seed)) for seed in (5, 5, 6)]
        assert ids_of(runs[0]) == ids_of(runs[1]) != ids_of(runs[2])
        sampled = [logprob for chunk in runs[0] for logprob in chunk.logprobs]
        scores = await upstream.score([*prompt, *ids_of(runs[0])])
        np.testing.assert_allclose(scores[len(prompt) :], sampled, atol=TOLERANCE)
        assert (scores[0], len(scores)) == (0.0, len(prompt) + len(sampled))


async def test_stop_strings_and_stop_tokens(
    make_world: MakeWorld, address: str, smol: PolicyLanguage
) -> None:
    hi = [{"role": "user", "content": "Count from one to twenty in words."}]
    prompt = smol.renderer.render((Message("user", hi[0]["content"]),), ())
    async with upstream_at(address) as upstream:
        whole = ids_of(await collect(upstream, prompt, Sampling(max_tokens=20, seed=7)))
        at = next(index for index, token in enumerate(whole) if index > 3 and token not in whole[:index])
        stopped = await collect(
            upstream, prompt, Sampling(max_tokens=20, seed=7, stop_token_ids=(whole[at],))
        )
        assert ids_of(stopped) == whole[: at + 1]
        assert (stopped[-1].finish_reason, stopped[-1].stop_token) == ("stop", whole[at])
    async with make_world(upstreams={}) as plain, proxied(plain, address) as world:
        session = await world.open(sampling={"max_tokens": 30, "seed": 3})
        free = (await world.chat(session.key, hi)).json()["choices"][0]["message"]["content"]
        word = next(word for word in free.split()[3:] if free.index(word) > 8)
        again = await world.open(sampling={"max_tokens": 30, "seed": 3})
        choice = (await world.chat(again.key, hi, stop=[word])).json()["choices"][0]
        assert (choice["message"]["content"], choice["finish_reason"]) == (free[: free.index(word)], "stop")
        (call,) = world.calls(again)
        assert word in smol.renderer.written(world.completion(again, call).ids).decode(errors="replace")


async def test_a_client_that_leaves_ends_the_sequence(make_world: MakeWorld, address: str) -> None:
    async with make_world(upstreams={}) as plain, proxied(plain, address) as world:
        session = await world.open(sampling={"max_tokens": 1_500})
        body = {
            "model": "m",
            "messages": [{"role": "user", "content": "Write a long story."}],
            "stream": True,
        }
        async with world.http.stream(
            "POST", f"{world.base(session)}/v1/chat/completions", json=body
        ) as reply:
            async for line in reply.aiter_lines():
                if '"content":' in line and '"content":""' not in line.replace(" ", ""):
                    break
            assert await _running(world, address) == 1
        call = await world.status(session, 0, "aborted")
        assert 0 < (call.completion_len or 0) < 1_500
        for _ in range(50):
            if await _running(world, address) == 0:
                break
            await asyncio.sleep(0.1)
        assert await _running(world, address) == 0
        assert verify(world.store).findings == ()


async def _running(world: World, address: str) -> int:
    """Sequences in the engine, by its own metrics."""
    text = (await world.http.get(f"{address}/metrics")).text
    (line,) = [line for line in text.splitlines() if line.startswith("vllm:num_requests_running")]
    return int(float(line.split()[-1]))


async def test_a_salt_separates_prefix_caches(address: str, smol: PolicyLanguage) -> None:
    prompt = smol.renderer.render((Message("user", "A long question about nothing. " * 60),), ())
    async with upstream_at(address) as upstream:
        last = [
            (await collect(upstream, prompt, Sampling(max_tokens=2), salt=salt))[-1]
            for salt in ("one", "one", "two")
        ]
    cached = [chunk.cached_tokens for chunk in last]
    assert cached[0] == cached[2] == 0
    assert cached[1] > len(prompt) // 2


async def test_a_sequence_that_vllm_aborts_for_an_update_goes_on(
    make_world: MakeWorld, address: str, model: Any
) -> None:
    async with make_world(upstreams={}) as plain, proxied(plain, address) as world:
        session = await world.open(sampling={"max_tokens": 200, "seed": 4, "stop_token_ids": []})
        asked = asyncio.create_task(
            world.chat(session.key, [{"role": "user", "content": "Write a long story."}])
        )
        while await _running(world, address) == 0:
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.5)
        assert (await world.http.post(f"{address}/pause", params={"mode": "abort"})).json() == {
            "status": "paused"
        }
        await asyncio.sleep(0.3)
        assert not asked.done(), asked.result().text
        await world.http.post(f"{address}/resume")
        choice = (await asked).json()["choices"][0]
        assert choice["finish_reason"] in ("stop", "length")
        assert check_recorded(world, session, model) > 20
        assert verify(world.store).findings == ()


def test_the_models_template_and_tokens_are_those_of_the_folder(smol: PolicyLanguage) -> None:
    config = json.loads(Path(vllm_cpu.MODEL / "config.json").read_text())
    assert config["eos_token_id"] in smol.stop_token_ids
