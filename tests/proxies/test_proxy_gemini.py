"""Google's own client against the proxy: turns, tools, thoughts, siblings, streams, refusals."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from google.genai import Client, errors, types
from sqlalchemy import select

from harnessgym.proxy_client import OpenedSession
from harnessgym.store import tables
from proxies.upstreams.scripted import ScriptedUpstream
from tests.proxies.conftest import MakeWorld, World

pytestmark = pytest.mark.anyio
CALL = 'Let me see.\n<tool_call>\n{"name": "get", "arguments": {"key": "a"}}\n</tool_call><|im_end|>'
CALLS = (
    "".join(f'<tool_call>\n{{"name": "get", "arguments": {{"key": "{key}"}}}}\n</tool_call>' for key in "ab")
    + "<|im_end|>"
)
THOUGHT = "<think>\nEasy.\n</think>\n\nIt is 4.<|im_end|>"
DONE = "It is 5.<|im_end|>"
SCHEMA = {"type": "object", "properties": {"key": {"type": "string"}}}
USER = {"role": "user", "parts": [{"text": "Hi"}]}


@asynccontextmanager
async def opened(world: World, **options: Any) -> AsyncIterator[tuple[Any, OpenedSession]]:
    """A session and a client of it, one that has the key in the address."""
    session = await world.open(**options)
    client = Client(
        api_key="unused", http_options=types.HttpOptions(base_url=f"{world.proxy.url}/s/{session.key}")
    ).aio
    try:
        yield client, session
    finally:
        await client.aclose()


async def ask(client: Any, contents: list[Any], *, stream: bool, **config: Any) -> list[Any]:
    """The chunks of an answer; one if it is not streamed."""
    if not stream:
        return [await client.models.generate_content(model="m", contents=contents, config=config)]
    return [
        chunk
        async for chunk in await client.models.generate_content_stream(
            model="m", contents=contents, config=config
        )
    ]


def parts_of(chunks: list[Any]) -> list[Any]:
    return [part for chunk in chunks for part in chunk.candidates[0].content.parts]


def text_of(chunks: list[Any], *, thought: bool | None = None) -> str:
    return "".join(part.text or "" for part in parts_of(chunks) if part.thought is thought)


def joined(world: World, session: OpenedSession) -> None:
    """The second call continues the first, token for token."""
    upstream = world.upstreams["w0"]
    assert isinstance(upstream, ScriptedUpstream)
    first, second = world.calls(session)
    link = select(tables.calls.c.parent_call_id, tables.calls.c.parent_evidence, tables.calls.c.break_class)
    rows = world.store.read(lambda conn: conn.execute(link.where(tables.calls.c.id == second.id)).all())
    assert [tuple(row) for row in rows] == [(first.id, "token_prefix", None)]
    assert [world.prompt(session, call) for call in (first, second)] == [
        list(asked.prompt) for asked in upstream.asked
    ]
    begun = [*upstream.asked[0].prompt, *world.completion(session, first).ids]
    assert list(upstream.asked[1].prompt[: len(begun)]) == begun


both_ways = pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
TOOLS = [
    {"function_declarations": [{"name": "get", "description": "Get.", "parameters_json_schema": SCHEMA}]}
]


@both_ways
@pytest.mark.parametrize("answer", [CALL, CALLS], ids=["one call", "two calls"])
async def test_a_tool_round_trip(make_world: MakeWorld, stream: bool, answer: str) -> None:
    async with make_world(answer, DONE) as world, opened(world) as (client, session):
        config: dict[str, Any] = {"system_instruction": "Be brief.", "tools": TOOLS}
        contents: list[Any] = [types.UserContent("What is it?")]
        chunks = await ask(client, contents, stream=stream, **config)
        calls = [part.function_call for part in parts_of(chunks) if part.function_call]
        assert [call.args for call in calls] == (
            [{"key": "a"}] if answer == CALL else [{"key": "a"}, {"key": "b"}]
        )
        assert len({call.id for call in calls}) == len(calls)
        assert all(part.thought_signature for part in parts_of(chunks) if part.function_call)
        results = [
            types.Part.from_function_response(name=call.name, response={"result": "5"}) for call in calls
        ]
        contents += [*(chunk.candidates[0].content for chunk in chunks), types.UserContent(results)]
        assert text_of(await ask(client, contents, stream=stream, **config)) == "It is 5."
        joined(world, session)


@both_ways
async def test_the_client_calls_functions_by_itself_and_keeps_the_history(
    make_world: MakeWorld, stream: bool
) -> None:
    def get(key: str) -> str:
        """Get."""
        return f"{key} is 5"

    async with make_world(CALL, DONE) as world, opened(world) as (client, session):
        chat = client.chats.create(model="m", config={"tools": [get]})
        if stream:
            said = "".join([chunk.text or "" async for chunk in await chat.send_message_stream("What is a?")])
        else:
            said = (await chat.send_message("What is a?")).text
        assert said.endswith("It is 5.")
        joined(world, session)
        last = world.language.renderer.decode(world.prompt(session, world.calls(session)[1]))  # type: ignore[attr-defined]
        assert "a is 5" in last


@both_ways
async def test_a_chat_of_several_messages(make_world: MakeWorld, stream: bool) -> None:
    async with make_world(DONE, DONE) as world, opened(world) as (client, session):
        chat = client.chats.create(model="m")
        for _ in range(2):
            if stream:
                assert (
                    "".join([chunk.text async for chunk in await chat.send_message_stream("And?")])
                    == "It is 5."
                )
            else:
                assert (await chat.send_message("And?")).text == "It is 5."
        joined(world, session)


@both_ways
@pytest.mark.parametrize("shown", [False, True])
async def test_thoughts_are_shown_to_those_who_ask(make_world: MakeWorld, stream: bool, shown: bool) -> None:
    async with make_world(THOUGHT, DONE) as world, opened(world) as (client, session):
        config = {"thinking_config": {"include_thoughts": shown}}
        contents: list[Any] = [types.UserContent("What is it?")]
        chunks = await ask(client, contents, stream=stream, **config)
        assert (text_of(chunks), text_of(chunks, thought=True)) == ("It is 4.", "Easy." if shown else "")
        contents += [*(chunk.candidates[0].content for chunk in chunks), types.UserContent("Sure?")]
        await ask(client, contents, stream=stream, **config)
        joined(world, session)


@both_ways
async def test_siblings(make_world: MakeWorld, stream: bool) -> None:
    async with make_world("One.<|im_end|>", "Two!<|im_end|>") as world, opened(world) as (client, _):
        chunks = await ask(client, ["Say."], stream=stream, candidate_count=2)
        texts = dict.fromkeys((0, 1), "")
        for candidate in (candidate for chunk in chunks for candidate in chunk.candidates):
            texts[candidate.index or 0] += "".join(part.text for part in candidate.content.parts)
        assert sorted(texts.values()) == ["One.", "Two!"]
        usage, whole = (
            chunks[-1].usage_metadata,
            len(world.text("One.<|im_end|>")) + len(world.text("Two!<|im_end|>")),
        )
        assert usage.candidates_token_count == whole


@both_ways
async def test_stop_length_and_usage(make_world: MakeWorld, stream: bool) -> None:
    async with make_world("One, two STOP") as world, opened(world) as (client, session):
        chunks = await ask(client, ["Count."], stream=stream, stop_sequences=["STOP"])
        assert (text_of(chunks), chunks[-1].candidates[0].finish_reason.value) == ("One, two ", "STOP")
        chunks = await ask(client, ["Count."], stream=stream, max_output_tokens=2)
        assert chunks[-1].candidates[0].finish_reason.value == "MAX_TOKENS"
        usage, call = chunks[-1].usage_metadata, world.calls(session)[1]
        assert (usage.prompt_token_count, usage.candidates_token_count) == (call.prompt_len, 2)
        assert usage.total_token_count == call.prompt_len + 2
        assert (chunks[-1].response_id, chunks[-1].model_version) == (call.id, "m")
        counted = await client.models.count_tokens(model="m", contents="Count.")
        assert counted.total_tokens == call.prompt_len


@both_ways
async def test_refusals_are_the_client_s_own_exceptions(make_world: MakeWorld, stream: bool) -> None:
    async with make_world(DONE, max_length=40) as world, opened(world) as (client, _):
        with pytest.raises(errors.ClientError) as caught:
            await ask(client, ["word " * 60], stream=stream)
        assert (caught.value.code, caught.value.status) == (400, "INVALID_ARGUMENT")
        assert "exceeds the maximum number of tokens allowed (40)." in caught.value.message
        with pytest.raises(errors.ClientError, match="googleSearch"):
            await ask(client, ["Hi"], stream=stream, tools=[{"google_search": {}}])
        stranger = Client(api_key="stranger", http_options=types.HttpOptions(base_url=world.proxy.url)).aio
        with pytest.raises(errors.ClientError) as caught:
            await ask(stranger, ["Hi"], stream=stream)
        await stranger.aclose()
        assert (caught.value.code, caught.value.status) == (401, "UNAUTHENTICATED")


async def test_a_stream_without_events_is_one_json_array(make_world: MakeWorld) -> None:
    async with make_world(CALL) as world:
        session = await world.open()
        url = f"{world.proxy.url}/v1beta/models/m:streamGenerateContent"
        body = {"contents": [USER], "tools": [{"functionDeclarations": [{"name": "get"}]}]}
        answer = await world.http.post(url, json=body, headers={"x-goog-api-key": session.key})
        chunks = answer.json()
        parts = [part for chunk in chunks for part in chunk["candidates"][0]["content"]["parts"]]
        assert "".join(part.get("text", "") for part in parts) == "Let me see."
        assert [part["functionCall"]["args"] for part in parts if "functionCall" in part] == [{"key": "a"}]
        assert [chunk["candidates"][0].get("finishReason") for chunk in chunks] == [None] * (
            len(chunks) - 1
        ) + ["STOP"]


@pytest.mark.parametrize("query", ["?alt=sse", ""], ids=["events", "array"])
async def test_signs_of_life_are_skipped(make_world: MakeWorld, query: str) -> None:
    async with make_world(DONE, keepalive_s=0.05) as world, opened(world) as (client, session):
        upstream = world.upstreams["w0"]
        assert isinstance(upstream, ScriptedUpstream)
        upstream.gate.clear()
        url = f"{world.proxy.url}/s/{session.key}/v1beta/models/m:streamGenerateContent{query}"
        parsed = asyncio.create_task(ask(client, ["Hi"], stream=True))
        async with world.http.stream("POST", url, json={"contents": [USER]}) as raw:
            chunks = raw.aiter_text()
            answer = ""
            while len(answer) < 2:
                answer += await anext(chunks)
            assert not answer.strip()
            upstream.gate.set()
            answer += "".join([chunk async for chunk in chunks])
        assert text_of(await parsed) == "It is 5."
        if not query:
            assert (
                "".join(chunk["candidates"][0]["content"]["parts"][0]["text"] for chunk in json.loads(answer))
                == "It is 5."
            )
