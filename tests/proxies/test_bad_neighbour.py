"""A session that sends what no honest harness sends neither stalls the others nor goes on for free."""

import asyncio
import json
import socket
import time
from collections import Counter
from typing import Any

import httpx
import pytest

from harnessgym.proxy_client import OpenedSession
from harnessgym.store import events
from harnessgym.traces.verification.verify import verify
from proxies.fairness import HeldRefusals
from proxies.renderers.long_texts import LONG
from proxies.upstreams.scripted import ScriptedUpstream
from tests.proxies import waiting_renderer
from tests.proxies.conftest import MakeWorld, World
from tests.proxies.connections import connections, head_of

pytestmark = pytest.mark.anyio
HI = [{"role": "user", "content": "hi"}]
LONG_ASK = [{"role": "user", "content": "look up " * (LONG // 4)}]
BAD: dict[str, Any] = {"max_tokens": "many"}


def refusals(world: World) -> list[dict[str, Any]]:
    world.store.write(lambda conn: None)  # behind what is queued
    stored = world.store.read(lambda conn: events.of_rollout(conn, world.rollout_id))
    return [event.attributes for event in stored if event.kind == "refused_request"]


def findings(world: World) -> list[str]:
    """What `traces verify` finds; version 0 of this world's policy was never published."""
    world.store.write(lambda conn: None)
    found = verify(world.store).findings
    return [str(finding) for finding in found if finding.kind != "span_version"]


async def test_a_long_prompt_keeps_no_other_session_waiting(make_world: MakeWorld) -> None:
    """The gate opens only after another session was answered: on the event loop this would never end."""
    waiting_renderer.GATE.clear()
    waiting_renderer.STARTED.clear()
    renderer = "tests.proxies.waiting_renderer:WaitingRenderer"
    async with make_world("Yes.<|im_end|>", renderer=renderer, max_length=10**5) as world:
        hostile, honest = await world.open(), await world.open()
        asked = asyncio.create_task(world.chat(hostile.key, LONG_ASK))
        assert await asyncio.to_thread(waiting_renderer.STARTED.wait, 30)
        assert (await world.chat(honest.key, HI)).status_code == 200
        assert (await world.http.get(f"{world.base(honest)}/v1/models")).status_code == 200
        assert (await world.chat(hostile.key, HI)).status_code == 200
        assert not asked.done()
        waiting_renderer.GATE.set()
        assert (await asked).status_code == 200
        assert [call.prompt_len for call in world.calls(hostile)][1] > LONG // 8
        await world.control.seal(hostile.session_id)
        await world.control.seal(honest.session_id)
        assert findings(world) == []


async def test_long_siblings_and_long_counts_have_the_tokens_of_short_ones(make_world: MakeWorld) -> None:
    async with make_world("Yes.<|im_end|>", max_length=10**5) as world:
        session = await world.open()
        response = await world.chat(session.key, LONG_ASK, n=3)
        assert len(response.json()["choices"]) == 3
        (length,) = {call.prompt_len for call in world.calls(session)}
        body = {"model": "m", "max_tokens": 9, "messages": LONG_ASK}
        counted = await world.http.post(f"{world.base(session)}/v1/messages/count_tokens", json=body)
        assert counted.json() == {"input_tokens": length}


async def test_a_body_that_is_parsed_on_a_thread_is_the_same_call(make_world: MakeWorld) -> None:
    async with make_world("Yes.<|im_end|>", max_length=10**6) as world:
        session = await world.open()
        messages = [{"role": "user", "content": "look it up " * 30_000}]
        first = (await world.chat(session.key, messages)).json()["choices"][0]["message"]
        messages += [{"role": "assistant", "content": first["content"]}, *HI]
        assert (await world.chat(session.key, messages)).status_code == 200
        one, two = world.calls(session)
        assert two.parent_call_id == one.id
        await world.control.seal(session.session_id)
        assert findings(world) == []


async def test_a_prompt_that_is_far_too_long_is_an_overflow(make_world: MakeWorld) -> None:
    async with make_world("Yes.<|im_end|>", max_length=1_000) as world:
        session = await world.open()
        response = await world.chat(session.key, [{"role": "user", "content": "a " * 1_000_000}])
        assert response.status_code == 400
        assert response.json()["error"]["code"] == "context_length_exceeded"
        assert (await world.chat(session.key, HI)).status_code == 200


async def test_the_largest_body_follows_from_the_longest_prompt(make_world: MakeWorld) -> None:
    async with make_world("Yes.<|im_end|>", max_length=1_000) as world:
        session = await world.open()
        response = await world.chat(session.key, [{"role": "user", "content": "a" * (5 << 20)}])
        assert response.status_code == 413
        assert [event["problem"] for event in refusals(world)] == ["too_large"]


async def test_refused_requests_count_as_turns(make_world: MakeWorld) -> None:
    async with make_world("Yes.<|im_end|>") as world:
        session = await world.open(limits={"turns": 3})
        assert (await world.chat(session.key, HI, **BAD)).status_code == 400
        assert (await world.http.get(f"{world.base(session)}/v1/nothing")).status_code == 404
        assert [(await world.chat(session.key, HI)).status_code for _ in range(3)] == [200, 200, 403]
        assert refusals(world)[-1]["limit"] == "turns"


async def test_after_too_many_refused_requests_a_session_has_no_more(make_world: MakeWorld) -> None:
    async with make_world("Yes.<|im_end|>") as world:
        session = await world.open()
        codes = [(await world.chat(session.key, HI, **BAD)).status_code for _ in range(256)]
        assert set(codes) == {400}
        begun = time.monotonic()
        refused = await world.chat(session.key, HI)
        assert time.monotonic() - begun >= 1.0
        assert (refused.status_code, refused.headers["x-should-retry"]) == (403, "false")
        assert "256 refused requests" in refused.json()["error"]["message"]
        # A proxy that starts again knows it.
        await world.stop()
        await world.start()
        assert (await world.chat(session.key, HI)).status_code == 403


async def test_a_restart_gives_no_refusals_back_however_many_there_may_be(make_world: MakeWorld) -> None:
    async with make_world("Yes.<|im_end|>") as world:
        session = await world.open(limits={"turns": 300})
        codes = [(await world.chat(session.key, HI, **BAD)).status_code for _ in range(300)]
        assert set(codes) == {400}
        assert (await world.chat(session.key, HI)).status_code == 403
        await world.stop()
        await world.start()
        assert (await world.chat(session.key, HI)).status_code == 403


async def test_unknown_routes_leave_room_for_the_record_of_refusals(make_world: MakeWorld) -> None:
    async with make_world("Yes.<|im_end|>") as world:
        session = await world.open()

        async def unknown() -> int:
            return (await world.http.get(f"{world.base(session)}/v1/nothing")).status_code

        assert {await unknown() for _ in range(300)} == {404}
        assert (await world.chat(session.key, HI, **BAD)).status_code == 400
        kinds = Counter(event["problem"] for event in refusals(world))
        assert kinds == {"not_found": 256, "malformed": 1}
        await world.stop()
        await world.start()
        assert await unknown() == 404
        assert (await world.chat(session.key, HI)).status_code == 200
        assert Counter(event["problem"] for event in refusals(world)) == kinds


async def test_a_session_has_so_many_requests_open_and_no_more(make_world: MakeWorld) -> None:
    async with make_world("Yes.<|im_end|>") as world:
        session, other = await world.open(), await world.open()
        gate = world.scripted("w0").gate
        gate.clear()
        limits = httpx.Limits(max_connections=300)
        async with httpx.AsyncClient(limits=limits, timeout=60) as many:
            url = f"{world.base(session)}/v1/chat/completions"
            bodies = [{"model": "m", "messages": [{"role": "user", "content": str(n)}]} for n in range(280)]
            asked = [asyncio.create_task(many.post(url, json=body)) for body in bodies]
            done, _ = await asyncio.wait(asked, timeout=60, return_when=asyncio.FIRST_COMPLETED)
            assert {response.result().status_code for response in done} == {429}
            mine = asyncio.create_task(world.chat(other.key, HI))
            await asyncio.sleep(0.1)
            gate.set()
            assert (await mine).status_code == 200
            codes = [(await response).status_code for response in asked]
        assert (codes.count(200), codes.count(429)) == (256, 24)


async def requests_of(world: World, session: OpenedSession, number: int) -> None:
    """Wait until a session has so many requests open."""
    (held,) = [each for each in world.proxy.sessions.open() if each.row.id == session.session_id]
    for _ in range(500):
        if held.requests == number:
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"{held.requests} requests are open, not {number}")


async def first_of(tasks: list["asyncio.Task[str]"], number: int) -> list["asyncio.Task[str]"]:
    """The first ones that are done. The others must not be done by then."""
    for _ in range(1_000):
        done = [task for task in tasks if task.done()]
        if len(done) >= number:
            assert len(done) == number
            return done
        await asyncio.sleep(0.02)
    raise AssertionError(f"{len(done)} are done, not {number}")


async def test_a_refusal_for_want_of_room_is_held_and_takes_no_room(make_world: MakeWorld) -> None:
    async with make_world("Yes.<|im_end|>") as world:
        session = await world.open()
        gate = world.scripted("w0").gate
        gate.clear()
        async with connections(world, session, map(str, range(256))) as answered:
            await requests_of(world, session, 256)
            begun = time.monotonic()
            async with connections(world, session, ["more"] * 20) as refused:
                await asyncio.sleep(0.5)
                await requests_of(world, session, 256)
                heads = [await head_of(reader) for reader in refused]
            assert time.monotonic() - begun >= 1.0
            assert {head.split(" ")[1] for head in heads} == {"429"}
            assert not any("connection: close" in head for head in heads)
            gate.set()
            assert {(await head_of(reader)).split(" ")[1] for reader in answered} == {"200"}


async def test_calls_whose_clients_have_left_take_room(make_world: MakeWorld) -> None:
    async with make_world("Yes.<|im_end|>", disconnect_grace_s=60.0) as world:
        session, other = await world.open(), await world.open()
        engine = world.scripted("w0")
        engine.gate.clear()
        async with connections(world, session, map(str, range(250))):
            await requests_of(world, session, 250)
            while len(engine.asked) < 250:
                await asyncio.sleep(0.01)
        await requests_of(world, session, 0)
        async with connections(world, session, map(str, range(300, 320))) as readers:
            heads = [asyncio.create_task(head_of(reader)) for reader in readers]
            refused = await first_of(heads, 14)
            assert all(" 429 " in head.result() for head in refused)
            mine = asyncio.create_task(world.chat(other.key, HI))
            engine.gate.set()
            assert (await mine).status_code == 200
            assert sum([" 200 " in await head for head in heads]) == 6


async def test_so_many_refusals_are_held_and_the_connections_of_others_closed(make_world: MakeWorld) -> None:
    async with make_world("Yes.<|im_end|>", max_in_flight=1) as world:
        session, hasty = await world.open(), await world.open()
        # As by default, except that fewer are held.
        world.proxy._gateway._held = HeldRefusals(of_one=2, hold_s=1.5)
        world.scripted("w0").gate.clear()
        first = asyncio.create_task(world.chat(session.key, HI))
        await requests_of(world, session, 1)
        await asyncio.sleep(0.1)
        async with connections(world, hasty, ["more"] * 5) as refused:
            tasks = [asyncio.create_task(head_of(reader)) for reader in refused]
            closed = await first_of(tasks, 3)
            held = [task for task in tasks if task not in closed]
            assert all(" 429 " in task.result() and "connection: close" in task.result() for task in closed)
            assert not any(["connection: close" in await task for task in held])
        world.scripted("w0").gate.set()
        assert (await first).status_code == 200


async def test_a_client_that_tries_again_without_pause_is_slowed_down(make_world: MakeWorld) -> None:
    async with make_world("Yes.<|im_end|>", max_in_flight=1) as world:
        session, hasty = await world.open(), await world.open()
        gate = world.scripted("w0").gate
        gate.clear()
        first = asyncio.create_task(world.chat(session.key, HI))
        await requests_of(world, session, 1)
        await asyncio.sleep(0.1)
        begun, codes = time.monotonic(), list[int]()
        while time.monotonic() - begun < 1.5:
            codes.append((await world.chat(hasty.key, HI)).status_code)
        assert codes == [429, 429]
        gate.set()
        assert (await first).status_code == 200
        assert (await world.chat(hasty.key, HI)).status_code == 200


async def test_a_body_that_does_not_come_is_not_waited_for(make_world: MakeWorld) -> None:
    async with make_world("Yes.<|im_end|>", client_wait_s=0.3) as world:
        session = await world.open()
        assert world.proxy.url is not None
        host, port = world.proxy.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        path = f"/s/{session.key}/v1/chat/completions"
        writer.write(f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n{{".encode())
        answer = await asyncio.wait_for(reader.read(), 30)
        writer.close()
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 408")
        assert json.loads(body)["error"]["code"] == "request_timeout"
        assert [event["problem"] for event in refusals(world)] == ["too_slow"]


async def test_a_client_that_does_not_read_is_left(make_world: MakeWorld) -> None:
    async with make_world("word " * 200_000 + "<|im_end|>", client_wait_s=0.5, max_length=10**6) as world:
        session = await world.open(sampling={"max_tokens": 500_000})
        assert world.proxy.url is not None
        host, port = world.proxy.url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port), limit=1)
        body = json.dumps({"model": "m", "messages": HI, "stream": True}).encode()
        path = f"/s/{session.key}/v1/chat/completions"
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode()
        writer.write(head + body)
        await world.status(session, 0, "committed", "undelivered")
        for _ in range(100):
            (held,) = [each for each in world.proxy.sessions.open() if each.row.id == session.session_id]
            if not held.requests:
                break
            await asyncio.sleep(0.1)
        assert held.requests == 0
        writer.close()


@pytest.mark.parametrize(("version", "stream"), [("1.1", False), ("1.0", True)])
async def test_a_client_that_leaves_a_whole_answer_unread_gets_it_again(
    make_world: MakeWorld, version: str, stream: bool
) -> None:
    # The kernel takes little of the answer; accepted sockets have the listener's buffer.
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
    address = listener.getsockname()
    async with make_world(upstreams={}, max_length=10**6, port=None, fd=listener.detach()) as world:
        ids = world.text("word " * 80_000 + "<|im_end|>")
        await world.add_worker("w0", ScriptedUpstream([ids], chunk=20_000))
        session = await world.open(sampling={"max_tokens": len(ids)})
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        client.connect(address)
        body = json.dumps({"model": "m", "messages": HI, "stream": stream}).encode()
        path = f"/s/{session.key}/v1/chat/completions"
        head = f"POST {path} HTTP/{version}\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode()
        client.sendall(head + body)
        await world.status(session, 0, "committed", "delivered")
        await asyncio.sleep(0.2)
        client.close()
        await world.status(session, 0, "undelivered")
        url = f"{world.base(session)}/v1/chat/completions"
        assert (await world.http.post(url, content=body)).status_code == 200
        assert [call.ordinal for call in world.calls(session)] == [0]


@pytest.mark.parametrize("path", ["/v1/messages", "/v1beta/models/m:generateContent", "/v1/responses"])
async def test_each_provider_has_its_own_words_for_a_large_body(make_world: MakeWorld, path: str) -> None:
    async with make_world("Yes.<|im_end|>", max_body=1_000) as world:
        session = await world.open()
        response = await world.http.post(f"{world.base(session)}{path}", content=b" " * 2_000)
        assert response.status_code == 413
        assert "1,000 bytes" in response.json()["error"]["message"]
