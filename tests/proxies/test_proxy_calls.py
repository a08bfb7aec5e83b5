"""Calls end to end over HTTP: what the engine is given, what is recorded, and when a client may see it."""

import asyncio
import itertools
import json
import sqlite3
from collections.abc import Callable, Sequence
from typing import Any

import httpx
import pytest
from sqlalchemy import select

from harnessgym.proxy_client import trust_for
from harnessgym.store import bodies
from harnessgym.store import calls as call_rows
from harnessgym.store.tables import calls as calls_table
from harnessgym.tokens import hash_ids
from harnessgym.traces.overview import overview
from proxies.upstreams.scripted import Failure, ScriptedUpstream
from tests.proxies.conftest import MakeWorld, World

pytestmark = pytest.mark.anyio
HI = [{"role": "user", "content": "hi"}]
CALL = '<tool_call>\n{"name": "get", "arguments": {"key": "a"}}\n</tool_call><|im_end|>'
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get",
            "description": "Get.",
            "parameters": {"type": "object", "properties": {"key": {}}},
        },
    }
]


def scripted(world: World, name: str = "w0") -> ScriptedUpstream:
    upstream = world.upstreams[name]
    assert isinstance(upstream, ScriptedUpstream)
    return upstream


def column(world: World, call_id: str, name: str) -> Any:
    query = select(calls_table.c[name]).where(calls_table.c.id == call_id)
    return world.store.read(lambda conn: conn.execute(query).scalar())


def events(body: bytes) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in body.decode().split("\n") if line.startswith("data: {")]


def streamed_text(body: bytes) -> str:
    return "".join(
        event["choices"][0]["delta"].get("content") or "" for event in events(body) if event["choices"]
    )


def reply(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


async def converse(world: World, key: str, turns: int, stream: bool = False) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = list(HI)
    for turn in range(turns):
        response = await world.chat(key, messages, stream=stream)
        assert response.status_code == 200, response.text
        text = (
            streamed_text(response.content) if stream else response.json()["choices"][0]["message"]["content"]
        )
        messages += [reply(text), {"role": "user", "content": f"and {turn}?"}]
    return messages


@pytest.mark.parametrize("stream", [False, True])
async def test_a_conversation_is_one_branch_of_exactly_the_engines_tokens(
    make_world: MakeWorld, stream: bool
) -> None:
    async with make_world("one<|im_end|>", "two words<|im_end|>", "three<|im_end|>") as world:
        session = await world.open(sampling={"seed": 7})
        await converse(world, session.key, 3, stream)
        recorded = world.calls(session)
        assert [call.ordinal for call in recorded] == [0, 1, 2]
        for call, asked in zip(recorded, scripted(world).asked, strict=True):
            assert world.prompt(session, call) == list(asked.prompt)
            assert column(world, call.id, "prompt_hash") == hash_ids(asked.prompt)
        texts = [world.text(text + "<|im_end|>") for text in ("one", "two words", "three")]
        assert [list(world.completion(session, call).ids) for call in recorded] == texts
        for earlier, later in itertools.pairwise(recorded):
            path = world.prompt(session, earlier) + list(world.completion(session, earlier).ids)
            assert world.prompt(session, later)[: len(path)] == path
            assert later.parent_call_id == earlier.id
        assert (await world.status(session, 2, "delivered")).finish_reason == "stop"
        assert [call.status for call in world.calls(session)] == ["acknowledged", "acknowledged", "delivered"]
        assert (await world.control.seal(session.session_id)).tokens == sum(map(len, texts))


async def test_sampling_is_the_sessions_and_what_was_asked_is_kept(make_world: MakeWorld) -> None:
    async with make_world("one two three four five six<|im_end|>") as world:
        session = await world.open(sampling={"temperature": 0.7, "seed": 3})
        response = await world.chat(session.key, HI, temperature=0.1, top_p=0.5, max_tokens=3)
        assert response.json()["choices"][0]["finish_reason"] == "length"
        (call,) = world.calls(session)
        asked, applied = column(world, call.id, "sampling_asked"), column(world, call.id, "sampling_applied")
        assert (asked["temperature"], asked["top_p"], asked["max_tokens"]) == (0.1, 0.5, 3)
        assert (applied["temperature"], applied["top_p"], applied["max_tokens"]) == (0.7, 1.0, 3)
        assert call.completion_len == 3


async def test_seeds_depend_on_prompt_and_repetition_not_on_the_key(make_world: MakeWorld) -> None:
    async with make_world("one<|im_end|>") as world:
        seeds = []
        for _ in range(2):
            session = await world.open(sampling={"seed": 3})
            for _ in range(2):
                await world.chat(session.key, HI)
            seeds.append([asked.sampling.seed for asked in scripted(world).asked[-2:]])
        assert seeds[0] == seeds[1]
        assert seeds[0][0] != seeds[0][1]


async def test_a_request_body_is_given_back_byte_for_byte(make_world: MakeWorld) -> None:
    async with make_world("one<|im_end|>") as world:
        session = await world.open()
        body = b'{ "model":"m",  "messages": [ {"role":"user","content":"h\\u00e9"} , {"role": "user", "content": "yo"} ] }'
        response = await world.http.post(
            f"{world.proxy.url}/s/{session.key}/v1/chat/completions", content=body
        )
        assert response.status_code == 200, response.text
        (call,) = world.calls(session)
        assert world.store.read(lambda conn: bodies.of_call(conn, call.id)) == body


async def test_parallel_equal_requests_are_two_calls(make_world: MakeWorld) -> None:
    async with make_world("one<|im_end|>", "two<|im_end|>") as world:
        session = await world.open()
        first, second = await asyncio.gather(world.chat(session.key, HI), world.chat(session.key, HI))
        assert first.json()["id"] != second.json()["id"]
        one, two = world.calls(session)
        assert one.prompt_segment == two.prompt_segment
        assert one.completion_segment != two.completion_segment


async def test_reasoning_that_a_client_drops_is_still_what_was_sampled(make_world: MakeWorld) -> None:
    async with make_world("<think>\nhm\n</think>\n\n one <|im_end|>", "two<|im_end|>") as world:
        session = await world.open()
        first = (await world.chat(session.key, HI)).json()["choices"][0]["message"]
        assert first["reasoning_content"]
        messages = [*HI, reply(first["content"].strip()), {"role": "user", "content": "more"}]
        await world.chat(session.key, messages)
        one, two = world.calls(session)
        assert two.parent_call_id == one.id
        assert column(world, two.id, "break_class") is None


async def test_breaks_are_diagnosed(make_world: MakeWorld) -> None:
    async with make_world(upstreams={}) as world:
        spelt = [token for letter in "the value" for token in world.text(letter)]
        world.upstreams["w0"] = ScriptedUpstream([[*spelt, *world.text("<|im_end|>")]])
        await world.stop()
        await world.start()
        session = await world.open()
        await world.chat(session.key, HI)
        more = {"role": "user", "content": "more"}
        await world.chat(session.key, [*HI, reply("something else"), more])
        await world.chat(session.key, [{"role": "user", "content": "quite different"}])
        cut = (await world.chat(session.key, HI, max_tokens=9)).json()["choices"][0]["message"]["content"]
        await world.chat(session.key, [*HI, reply(cut), more])
        breaks = [column(world, call.id, "break_class") for call in world.calls(session)]
        assert breaks == [None, "edited_history", "new_root", None, "length_cut"]


async def test_history_template_renders_and_joins_by_tokens_only(make_world: MakeWorld) -> None:
    async with make_world("one<|im_end|>", "  two<|im_end|>", "three<|im_end|>") as world:
        session = await world.open(history="template")
        await converse(world, session.key, 3)
        recorded = world.calls(session)
        for call, asked in zip(recorded, scripted(world).asked, strict=True):
            assert world.prompt(session, call) == list(asked.prompt)
        assert recorded[1].parent_call_id == recorded[0].id


@pytest.mark.parametrize("stream", [False, True])
async def test_nothing_a_client_can_act_on_comes_before_the_commit(
    make_world: MakeWorld, stream: bool
) -> None:
    async with make_world("Looking.\n" + CALL) as world:
        session = await world.open()
        await world.chat(session.key, [{"role": "user", "content": "warm up"}])
        lock = sqlite3.connect(world.store.url.removeprefix("sqlite:///"), isolation_level=None)
        seen = bytearray()

        async def read() -> None:
            body = {"model": "m", "messages": HI, "tools": TOOLS, "stream": stream}
            url = f"{world.proxy.url}/s/{session.key}/v1/chat/completions"
            async with world.http.stream("POST", url, json=body) as response:
                async for piece in response.aiter_bytes():
                    seen.extend(piece)

        await world.status(session, 0, "delivered")
        lock.execute("BEGIN IMMEDIATE")
        reading = asyncio.create_task(read())
        await asyncio.sleep(0.5)
        assert (b"Looking" in seen) is stream
        assert b"tool_calls" not in seen
        assert b'finish_reason":"' not in seen
        lock.execute("ROLLBACK")
        lock.close()
        await reading
        assert b"tool_calls" in seen
        assert world.calls(session)[1].status in ("committed", "delivered")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_restarted_proxy_continues_the_same_branch(make_world: MakeWorld, stream: bool) -> None:
    async with make_world(
        "<think>\nhm\n</think>\n\none<|im_end|>", "two<|im_end|>", "three<|im_end|>"
    ) as world:
        session = await world.open()
        messages = await converse(world, session.key, 2, stream)
        await world.stop()
        await world.start()
        response = await world.chat(session.key, messages, stream=stream)
        assert response.status_code == 200
        one, two, three = world.calls(session)
        assert (three.ordinal, three.parent_call_id, two.parent_call_id) == (2, two.id, one.id)
        assert world.prompt(session, three) == list(scripted(world).asked[2].prompt)


async def test_a_retry_across_a_restart_gives_the_same_call(make_world: MakeWorld) -> None:
    async with make_world("one<|im_end|>", "two<|im_end|>") as world:
        session = await world.open()
        await leave_early(world, session.key)
        call = await world.status(session, 0, "undelivered")
        await world.stop()
        await world.start()
        response = await world.chat(session.key, HI, stream=False)
        assert response.json()["id"].endswith(call.id)
        assert response.json()["choices"][0]["message"]["content"] == "one"
        assert len(world.calls(session)) == 1
        again = await world.chat(session.key, HI, stream=False)
        assert again.json()["choices"][0]["message"]["content"] == "two"


@pytest.mark.parametrize("retry", [False, True])
async def test_an_answer_committed_right_before_a_restart_is_given_again_to_a_declared_retry_only(
    make_world: MakeWorld, retry: bool
) -> None:
    async with make_world("one<|im_end|>", "two<|im_end|>") as world:
        session = await world.open()
        first = await world.chat(session.key, HI)
        call = await world.status(session, 0, "delivered")
        await world.stop()
        world.store.write(lambda conn: call_rows.set_status(conn, call.id, "committed"))
        await world.start()
        url = f"{world.proxy.url}/s/{session.key}/v1/chat/completions"
        headers = {"x-stainless-retry-count": "1"} if retry else {}
        second = await world.http.post(url, json={"model": "m", "messages": HI}, headers=headers)
        assert (second.json()["id"] == first.json()["id"]) is retry
        assert len(world.calls(session)) == (1 if retry else 2)


async def until(condition: Callable[[], bool]) -> None:
    """Wait until something is so."""
    for _ in range(1_200):
        if condition():
            return
        await asyncio.sleep(0.05)
    raise AssertionError("what was waited for did not come")


async def leave_early(world: World, key: str, *, stream: bool = False) -> None:
    """Ask, and close the connection before the engine has said anything."""
    upstream = scripted(world)
    upstream.gate.clear()
    async with httpx.AsyncClient(trust_env=False, verify=trust_for("http:")) as impatient:
        body = {"model": "m", "messages": HI, "stream": stream}
        with pytest.raises(httpx.ReadTimeout):
            await impatient.post(f"{world.proxy.url}/s/{key}/v1/chat/completions", json=body, timeout=0.3)
    await asyncio.sleep(0.05)
    upstream.gate.set()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("finished", [False, True])
async def test_an_equal_body_after_a_lost_connection_is_the_same_call(
    make_world: MakeWorld, stream: bool, finished: bool
) -> None:
    async with make_world("one<|im_end|>", "two<|im_end|>") as world:
        session = await world.open()
        await leave_early(world, session.key, stream=stream)
        if finished:
            await world.status(session, 0, "undelivered")
        response = await world.chat(session.key, HI, stream=stream)
        text = (
            streamed_text(response.content) if stream else response.json()["choices"][0]["message"]["content"]
        )
        assert text == "one"
        assert (await world.status(session, 0, "delivered")).ordinal == 0
        assert len(world.calls(session)) == len(scripted(world).asked) == 1


async def test_a_retry_header_joins_a_call_that_is_live_on_an_open_connection(make_world: MakeWorld) -> None:
    async with make_world("one<|im_end|>", "two<|im_end|>") as world:
        session = await world.open()
        scripted(world).gate.clear()
        first = asyncio.create_task(world.chat(session.key, HI))
        await asyncio.sleep(0.2)
        body = json.dumps({"model": "m", "messages": HI}).replace(" ", "").encode()
        url = f"{world.proxy.url}/s/{session.key}/v1/chat/completions"
        second = asyncio.create_task(
            world.http.post(url, content=body, headers={"x-stainless-retry-count": "1"})
        )
        await asyncio.sleep(0.1)
        scripted(world).gate.set()
        assert (await first).json()["id"] == (await second).json()["id"]
        assert len(world.calls(session)) == 1


@pytest.mark.parametrize("waits", [True, False], ids=["in_flight", "undelivered"])
async def test_of_a_hundred_calls_at_once_every_retry_is_the_same_call(
    make_world: MakeWorld, waits: bool
) -> None:
    """Their clients ask again while all are in flight; or all close their connections and ask again once
    all have finished.
    """
    async with make_world("one<|im_end|>", disconnect_grace_s=60.0) as world:
        session = await world.open()
        url = f"{world.proxy.url}/s/{session.key}/v1/chat/completions"
        asked = [
            {"model": "m", "messages": [{"role": "user", "content": f"question {n}"}]} for n in range(100)
        ]
        loaded = await world.proxy.sessions.by_key(session.key)
        assert loaded is not None

        def listening() -> int:
            return sum(len(call.listeners) for call in loaded.live.values())

        scripted(world).gate.clear()
        async with httpx.AsyncClient(
            trust_env=False, verify=trust_for("http:"), limits=httpx.Limits(), timeout=120.0
        ) as http:
            first = [asyncio.create_task(http.post(url, json=body)) for body in asked]
            await until(lambda: len(scripted(world).asked) == listening() == 100)
            if not waits:
                for asking in first:
                    asking.cancel()
                await asyncio.gather(*first, return_exceptions=True)
                await until(lambda: not listening())
                scripted(world).gate.set()
                await until(lambda: {call.status for call in world.calls(session)} == {"undelivered"})
            retry = {"x-stainless-retry-count": "1"} if waits else {}
            second = [asyncio.create_task(http.post(url, json=body, headers=retry)) for body in asked]
            if waits:
                await until(lambda: listening() == 200)
                scripted(world).gate.set()
            answers = [(await asking).json()["id"] for asking in second]
            assert len(set(answers)) == 100
            if waits:
                assert [(await asking).json()["id"] for asking in first] == answers
        assert len(world.calls(session)) == len(scripted(world).asked) == 100


async def test_a_call_nobody_waits_for_ends_after_its_grace_time(make_world: MakeWorld) -> None:
    async with make_world(disconnect_grace_s=0.2, upstreams={}) as world:
        upstream = ScriptedUpstream([world.text("one two three four five<|im_end|>")], chunk=1, delay_s=0.15)
        world.upstreams["w0"] = upstream
        await world.stop()
        await world.start()
        session = await world.open()
        async with httpx.AsyncClient(trust_env=False, verify=trust_for("http:")) as impatient:
            body = {"model": "m", "messages": HI}
            with pytest.raises(httpx.ReadTimeout):
                await impatient.post(
                    f"{world.proxy.url}/s/{session.key}/v1/chat/completions", json=body, timeout=0.5
                )
        call = await world.status(session, 0, "aborted")
        assert 0 < (call.completion_len or 0) < len(world.text("one two three four five<|im_end|>"))
        assert upstream.cancelled == 1
        assert (await world.chat(session.key, HI)).status_code == 200
        assert len(world.calls(session)) == 2


@pytest.mark.parametrize("after", [0, 3])
@pytest.mark.parametrize("stream", [False, True])
async def test_another_worker_continues_a_lost_ones_answer(
    make_world: MakeWorld, after: int, stream: bool
) -> None:
    async with make_world(upstreams={}) as world:
        whole = world.text("one two three four five<|im_end|>")
        begun: list[Sequence[int]] = []

        def answer(prompt: Sequence[int], sampling: object) -> Sequence[int]:
            begun.append(prompt)
            return whole[len(prompt) - len(begun[0]) :]

        for name in ("a", "b"):
            world.upstreams[name] = ScriptedUpstream(answer, chunk=1, version=4)
        await world.stop()
        await world.start()
        scripted(world, "a")._failures.append(Failure(after))
        scripted(world, "b")._failures.append(Failure(after))
        session = await world.open()
        response = await world.chat(session.key, HI, stream=stream)
        text = (
            streamed_text(response.content) if stream else response.json()["choices"][0]["message"]["content"]
        )
        assert text == "one two three four five"
        (call,) = world.calls(session)
        assert list(world.completion(session, call).ids) == whole
        assert [(span.start, span.end, span.version) for span in call.version_spans] == [(0, len(whole), 4)]


@pytest.mark.parametrize("stream", [False, True])
async def test_an_engine_that_refuses_or_miscounts_is_an_error(make_world: MakeWorld, stream: bool) -> None:
    async with make_world(upstreams={}) as world:
        ids = world.text("one two three<|im_end|>")
        world.upstreams["w0"] = ScriptedUpstream(
            [ids], failures=[Failure(0, lost=False), Failure(4, lost=False)], miscount=1, delay_s=0.02
        )
        await world.stop()
        await world.start()
        session = await world.open()
        for turn in range(3):
            response = await world.chat(session.key, [{"role": "user", "content": str(turn)}], stream=stream)
            if stream and turn:
                assert response.status_code == 200
                assert "error" in events(response.content)[-1]
                assert all(
                    not event.get("choices") or event["choices"][0]["finish_reason"] is None
                    for event in events(response.content)
                )
            else:
                assert response.status_code >= 500
        assert [call.status for call in world.calls(session)] == ["error"] * 3
        errors = [column(world, call.id, "error") for call in world.calls(session)]
        assert "counted" in errors[2]


async def test_stop_strings_reach_the_engine_and_not_the_client(make_world: MakeWorld) -> None:
    async with make_world("one STOP") as world:
        session = await world.open()
        for stream in (False, True):
            response = await world.chat(session.key, HI, stop=["STOP"], stream=stream)
            text = (
                streamed_text(response.content)
                if stream
                else response.json()["choices"][0]["message"]["content"]
            )
            assert text == "one "
        assert scripted(world).asked[0].sampling.stop == ("STOP",)
        assert list(world.completion(session, world.calls(session)[0]).ids) == world.text("one STOP")


async def test_limits_of_turns_and_length(make_world: MakeWorld) -> None:
    async with make_world("one<|im_end|>", max_length=100) as world:
        session = await world.open(limits={"turns": 2})
        too_long = [{"role": "user", "content": "word " * 200}]  # refused, and a turn all the same
        refused = await world.chat(session.key, too_long)
        assert refused.json()["error"]["code"] == "context_length_exceeded"
        assert (await world.chat(session.key, HI)).status_code == 200
        refused = await world.chat(session.key, HI)
        assert refused.status_code == 403
        assert refused.headers["x-should-retry"] == "false"
        assert scripted(world).asked[0].sampling.max_tokens == 100 - len(scripted(world).asked[0].prompt)
        assert len(world.calls(session)) == 1


async def test_a_stream_that_waits_is_kept_alive(make_world: MakeWorld) -> None:
    async with make_world("one<|im_end|>", keepalive_s=0.1) as world:
        session = await world.open()
        scripted(world).gate.clear()
        asyncio.get_running_loop().call_later(0.5, scripted(world).gate.set)
        response = await world.chat(session.key, HI, stream=True)
        assert b"\n:" in response.content
        assert streamed_text(response.content) == "one"


async def test_after_a_failed_write_the_session_is_read_again(make_world: MakeWorld) -> None:
    async with make_world("one<|im_end|>", "two<|im_end|>", "three<|im_end|>") as world:
        session = await world.open()
        messages = await converse(world, session.key, 1)
        trigger = "CREATE TRIGGER refuse BEFORE INSERT ON bodies BEGIN SELECT RAISE(ABORT, 'no more'); END"
        world.store.write(lambda conn: conn.exec_driver_sql(trigger))
        failed = await world.chat(session.key, messages)
        assert failed.status_code >= 500
        world.store.write(lambda conn: conn.exec_driver_sql("DROP TRIGGER refuse"))
        assert (await world.chat(session.key, messages)).status_code == 200
        one, three = world.calls(session)
        assert (three.ordinal, three.parent_call_id) == (1, one.id)
        assert world.prompt(session, three) == list(scripted(world).asked[-1].prompt)


async def test_after_a_failed_write_and_a_failed_engine_the_session_is_read_again(
    make_world: MakeWorld,
) -> None:
    async with make_world("one<|im_end|>", "lost<|im_end|>", "three<|im_end|>") as world:
        session = await world.open()
        messages = await converse(world, session.key, 1)
        scripted(world)._failures += [None, Failure(0, lost=False)]
        trigger = "CREATE TRIGGER refuse BEFORE INSERT ON bodies BEGIN SELECT RAISE(ABORT, 'no more'); END"
        world.store.write(lambda conn: conn.exec_driver_sql(trigger))
        assert (await world.chat(session.key, messages)).status_code >= 500
        world.store.write(lambda conn: conn.exec_driver_sql("DROP TRIGGER refuse"))
        assert (await world.chat(session.key, messages)).status_code == 200
        one, three = world.calls(session)
        assert (three.ordinal, three.parent_call_id) == (1, one.id)
        assert world.prompt(session, three) == list(scripted(world).asked[-1].prompt)


async def test_markup_that_does_not_parse_is_text_and_counted(make_world: MakeWorld) -> None:
    broken = "<tool_call>\n{not JSON}\n</tool_call><|im_end|>"
    async with make_world(CALL, broken) as world:
        session = await world.open()
        for expected in ({}, {"unparsed": 1}):
            response = await world.chat(session.key, HI, tools=TOOLS)
            usage = column(world, response.json()["id"].removeprefix("chatcmpl-"), "usage")
            assert {name: count for name, count in usage.items() if name == "unparsed"} == expected
        assert "{not JSON}" in response.json()["choices"][0]["message"]["content"]
        await world.control.seal(session.session_id)
        found = world.store.read(lambda conn: overview(conn, world.rollout_id))
        assert ("malformed markup", "1") in found.rows()
