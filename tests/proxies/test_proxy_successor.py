"""A proxy that finds calls in flight in the store, as the successor of a killed one does."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from harnessgym.proxy_client import OpenedSession
from proxies.upstreams.scripted import ScriptedUpstream
from tests.proxies.conftest import MakeWorld, World

pytestmark = pytest.mark.anyio
HI = [{"role": "user", "content": "hi"}]


async def ask(
    world: World,
    session: OpenedSession,
    *,
    retry: bool = False,
    text: str = "hi",
    messages: list[dict[str, Any]] | None = None,
) -> Any:
    url = f"{world.proxy.url}/s/{session.key}/v1/chat/completions"
    body = {"model": "m", "messages": messages or [{"role": "user", "content": text}]}
    return await world.http.post(url, json=body, headers={"x-stainless-retry-count": "1"} if retry else {})


@asynccontextmanager
async def succeeded(
    world: World, session: OpenedSession, in_flight: int, messages: list[dict[str, Any]] | None = None
) -> AsyncIterator[ScriptedUpstream]:
    """`world.proxy` is another proxy on the same store, while `in_flight` equal calls of the first have
    only their intents.
    """
    first, first_control, engine = world.proxy, world.control, world.upstreams["w0"]
    assert isinstance(engine, ScriptedUpstream)
    engine.gate.clear()
    asking = [asyncio.create_task(ask(world, session, messages=messages)) for _ in range(in_flight)]
    await world.status(session, in_flight - 1, "intent")
    said = [world.text(f"{word}<|im_end|>") for word in ("one", "two", "three")]
    world.upstreams["w0"] = successor = ScriptedUpstream(said)
    await world.start()
    yield successor
    await first_control.aclose()
    await first.stop()
    await asyncio.gather(*asking)


@pytest.mark.parametrize("retry", [False, True])
async def test_equal_requests_in_flight_at_a_kill_each_get_back_their_own_call(
    make_world: MakeWorld, retry: bool
) -> None:
    async with make_world("unused<|im_end|>") as world:
        session = await world.open(sampling={"seed": 1})
        async with succeeded(world, session, 2) as engine:
            responses = await asyncio.gather(*(ask(world, session, retry=retry) for _ in range(2)))
            recorded = world.calls(session)
            assert sorted(response.json()["id"] for response in responses) == sorted(
                f"chatcmpl-{call.id}" for call in recorded
            )
            assert len({asked.sampling.seed for asked in engine.asked}) == 2
            assert (await ask(world, session)).status_code == 200
            assert [call.ordinal for call in world.calls(session)] == [0, 1, 2]


async def test_what_a_resumed_call_was_asked_is_known_afterwards(make_world: MakeWorld) -> None:
    shots = [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}, *HI]
    async with make_world("unused<|im_end|>") as world:
        session = await world.open()
        async with succeeded(world, session, 1, shots):
            resumed = await ask(world, session, messages=shots)
            said = resumed.json()["choices"][0]["message"]
            assert (await ask(world, session, messages=[*shots, said, *HI])).status_code == 200
            assert (await ask(world, session, messages=shots[:1])).status_code == 200
            assert [world.break_of(call) for call in world.calls(session)] == [None, None, None]


async def test_a_refused_retry_leaves_the_intent_to_the_next_one(make_world: MakeWorld) -> None:
    async with make_world("unused<|im_end|>", max_in_flight=1) as world:
        session = await world.open()
        async with succeeded(world, session, 1) as engine:
            engine.gate.clear()
            other = asyncio.create_task(ask(world, session, text="another"))
            await world.status(session, 1, "intent")
            assert (await ask(world, session)).headers["retry-after"]
            engine.gate.set()
            assert (await other).status_code == 200
            response = await ask(world, session)
            first, _ = world.calls(session)
            assert response.json()["id"].endswith(first.id)
