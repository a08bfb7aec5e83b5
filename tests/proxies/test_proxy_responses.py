"""The official OpenAI SDK's Responses client against the proxy: what it is shown, and that a conversation
is one branch.
"""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from openai import AsyncOpenAI, BadRequestError, NotFoundError
from sqlalchemy import select

from harnessgym.proxy_client import OpenedSession
from harnessgym.store.tables import calls as calls_table
from proxies.upstreams.scripted import ScriptedUpstream
from tests.proxies.conftest import MakeWorld, World

pytestmark = pytest.mark.anyio
DONE = "It is 5.<|im_end|>"
SCHEMA = {"type": "object", "properties": {"key": {"type": "string"}}}
GET = {"type": "function", "name": "get", "description": "Get.", "parameters": SCHEMA, "strict": False}
PATCH = {"type": "custom", "name": "patch", "description": "Patch.", "format": {"type": "text"}}
TEAM = {"type": "namespace", "name": "team", "description": "Team.", "tools": [{**GET, "name": "spawn"}]}
TOOLS: Any = [GET, PATCH, TEAM]
SYSTEM = {"role": "developer", "content": "Be brief."}
ASK = {"role": "user", "content": "What is a?"}


def wanted(*calls: tuple[str, dict[str, Any]], text: str = "") -> str:
    """An answer in the policy's own markup."""
    blocks = [
        f"<tool_call>\n{json.dumps({'name': name, 'arguments': given})}\n</tool_call>"
        for name, given in calls
    ]
    return "\n".join([*([text] if text else []), *blocks]) + "<|im_end|>"


@asynccontextmanager
async def speaking(world: World, session: OpenedSession) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{world.proxy.url}/v1", api_key=session.key, max_retries=0) as client:
        yield client


async def ask(client: AsyncOpenAI, items: list[Any], how: str, **options: Any) -> Any:
    """The SDK's response object, got whole, from raw events, or from its own stream helper."""
    options = {"model": "m", "input": items, "tools": TOOLS, **options}
    if how == "plain":
        return await client.responses.create(**options)
    if how == "helper":
        async with client.responses.stream(**options) as stream:
            return await stream.get_final_response()
    events = [event async for event in await client.responses.create(**options, stream=True)]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    return events[-1].response


async def converse(world: World, session: OpenedSession, how: str, **options: Any) -> list[Any]:
    """Two turns: each call of the first answer gets a result. The first answer's items."""
    async with speaking(world, session) as client:
        first = await ask(client, [SYSTEM, ASK], how, **options)
        replies = [
            {"type": f"{item.type}_output", "call_id": item.call_id, "output": f"r{number}"}
            for number, item in enumerate(item for item in first.output if hasattr(item, "call_id"))
        ]
        said = [item.model_dump(exclude_none=True) for item in first.output]
        second = await ask(
            client, [SYSTEM, ASK, *said, *replies, {"role": "user", "content": "And?"}], how, **options
        )
        assert (second.output_text, second.status) == ("It is 5.", "completed")
        return list(first.output)


def check_one_branch(world: World, session: OpenedSession, answer: str) -> None:
    """Both calls are recorded as exactly the engine's tokens, the second as continuing the first."""
    upstream = world.upstreams["w0"]
    assert isinstance(upstream, ScriptedUpstream)
    one, two = world.calls(session)
    assert [list(world.completion(session, call).ids) for call in (one, two)] == [
        world.text(answer),
        world.text(DONE),
    ]
    assert [world.prompt(session, call) for call in (one, two)] == [
        list(asked.prompt) for asked in upstream.asked
    ]
    link = select(calls_table.c.parent_call_id, calls_table.c.parent_evidence, calls_table.c.break_class)
    row = world.store.read(lambda conn: conn.execute(link.where(calls_table.c.id == two.id)).one())
    assert tuple(row) == (one.id, "token_prefix", None)
    given = [*upstream.asked[0].prompt, *world.text(answer)]
    assert list(upstream.asked[1].prompt[: len(given)]) == given


every_way = pytest.mark.parametrize("how", ["plain", "raw", "helper"])


@every_way
async def test_text(make_world: MakeWorld, how: str) -> None:
    async with make_world("Let me see.<|im_end|>", DONE) as world:
        session = await world.open()
        (message,) = await converse(world, session, how, instructions="You count.")
        assert (message.type, message.status, message.content[0].text) == (
            "message",
            "completed",
            "Let me see.",
        )
        check_one_branch(world, session, "Let me see.<|im_end|>")


@every_way
async def test_parallel_calls_of_every_kind(make_world: MakeWorld, how: str) -> None:
    answer = wanted(
        ("get", {"key": "a"}),
        ("patch", {"input": "*** ü\n"}),
        ("team__spawn", {"key": "b"}),
        text="I call the others.",
    )
    async with make_world(answer, DONE) as world:
        session = await world.open()
        message, get, patch, spawn = await converse(world, session, how)
        assert message.content[0].text == "I call the others."
        assert (get.type, get.name, json.loads(get.arguments), get.namespace) == (
            "function_call",
            "get",
            {"key": "a"},
            None,
        )
        assert (patch.type, patch.name, patch.input) == ("custom_tool_call", "patch", "*** ü\n")
        assert (spawn.type, spawn.name, spawn.namespace) == ("function_call", "spawn", "team")
        assert len({item.id for item in (message, get, patch, spawn)}) == 4
        check_one_branch(world, session, answer)


@every_way
@pytest.mark.parametrize("include", [None, ["reasoning.encrypted_content"]], ids=["shown", "sealed"])
async def test_reasoning(make_world: MakeWorld, how: str, include: list[str] | None) -> None:
    answer = "<think>\nFirst,\n\nthink.\n</think>\n\n" + wanted(("get", {"key": "a"}))
    async with make_world(answer, DONE) as world:
        session = await world.open()
        reasoning, call = await converse(
            world, session, how, **({} if include is None else {"include": include})
        )
        assert [part.text for part in reasoning.summary] == ["First,\n\nthink."]
        assert (reasoning.encrypted_content is not None) == (include is not None)
        assert call.name == "get"
        check_one_branch(world, session, answer)


async def test_a_call_whose_arguments_are_written_anew_and_ids_left_out(make_world: MakeWorld) -> None:
    answer = wanted(("get", {"key": "a"}), ("get", {"key": "b"}))
    async with make_world(answer, DONE) as world:
        session = await world.open()
        async with speaking(world, session) as client:
            one, two = (await ask(client, [SYSTEM, ASK], "plain")).output
            compact = [
                {"type": "function_call", "call_id": call.call_id, "name": "get"} for call in (one, two)
            ]
            compact[0]["arguments"], compact[1]["arguments"] = '{"key":"a"}', '{"key":"b"}'
            results = [
                {"type": "function_call_output", "call_id": call.call_id, "output": "5"}
                for call in (one, two)
            ]
            items = [SYSTEM, ASK, compact[0], results[0], compact[1], results[1]]
            assert (await ask(client, items, "plain")).output_text == "It is 5."
        check_one_branch(world, session, answer)


async def test_an_answer_that_is_cut_off(make_world: MakeWorld) -> None:
    async with make_world("one two three four five six seven<|im_end|>") as world:
        session = await world.open()
        async with speaking(world, session) as client:
            for how in ("plain", "raw"):
                response = await ask(client, [ASK], how, max_output_tokens=2)
                assert (response.status, response.incomplete_details.reason) == (
                    "incomplete",
                    "max_output_tokens",
                )
                assert response.output[0].status == "incomplete"
                assert response.usage.output_tokens == 2
        assert [call.finish_reason for call in world.calls(session)] == ["length", "length"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_prompt_that_is_too_long(make_world: MakeWorld, stream: bool) -> None:
    async with make_world(DONE, max_length=30) as world:
        session = await world.open()
        async with speaking(world, session) as client:
            with pytest.raises(
                BadRequestError, match="Your input exceeds the context window of this model"
            ) as caught:
                await client.responses.create(model="m", input="word " * 100, stream=stream)
        assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "input")
        assert world.calls(session) == []


async def test_input_tokens_are_counted(make_world: MakeWorld) -> None:
    async with make_world(DONE) as world:
        session = await world.open()
        async with speaking(world, session) as client:
            counted = await client.responses.input_tokens.count(model="m", input=[SYSTEM, ASK], tools=TOOLS)  # type: ignore[list-item]
            response = await ask(client, [SYSTEM, ASK], "plain")
        assert counted.input_tokens == response.usage.input_tokens == world.calls(session)[0].prompt_len


async def test_what_is_not_here_is_refused(make_world: MakeWorld) -> None:
    async with make_world(DONE) as world:
        session = await world.open()
        async with speaking(world, session) as client:
            with pytest.raises(BadRequestError, match="'web_search' tools are not supported"):
                await ask(client, [ASK], "plain", tools=[{"type": "web_search"}])
            with pytest.raises(BadRequestError, match="Previous response with id 'x' not found"):
                await ask(client, [ASK], "plain", previous_response_id="x")
            with pytest.raises(NotFoundError):
                await client.responses.retrieve("resp_1")
        assert world.calls(session) == []


async def test_the_path_without_a_version(make_world: MakeWorld) -> None:
    async with make_world(DONE) as world:
        session = await world.open()
        response = await world.http.post(
            f"{world.proxy.url}/s/{session.key}/responses", json={"model": "m", "input": "Hi"}
        )
        assert response.json()["output"][0]["content"][0]["text"] == "It is 5."


@every_way
async def test_a_conversation_by_the_id_of_the_previous_answer(make_world: MakeWorld, how: str) -> None:
    answer = wanted(("get", {"key": "a"}), text="Let me see.")
    async with make_world(answer, DONE) as world:
        session = await world.open()
        async with speaking(world, session) as client:
            first = await ask(client, [SYSTEM, ASK], how)
            result = {"type": "function_call_output", "call_id": first.output[-1].call_id, "output": "5"}
            second = await ask(client, [result], how, previous_response_id=first.id)
            assert (second.output_text, second.previous_response_id) == ("It is 5.", first.id)
            with pytest.raises(BadRequestError, match="Previous response with id 'resp_0' not found"):
                await ask(client, [ASK], "plain", previous_response_id="resp_0")
        check_one_branch(world, session, answer)


@pytest.mark.parametrize(
    "referred", [{"reasoning", "message", "function_call"}, {"message"}, {"function_call"}]
)
async def test_items_can_be_referred_to_by_id(make_world: MakeWorld, referred: set[str]) -> None:
    """As Vercel's AI SDK does by default: what the provider has is not sent again."""
    first = f"<think>\nHm.\n</think>\n\n{wanted(('get', {'key': 'a'}), text='I look.')}"
    async with make_world(first, DONE) as world:
        session = await world.open()
        async with speaking(world, session) as client:
            answer = await ask(client, [SYSTEM, ASK], "plain")
            items = [item.model_dump(exclude_none=True) for item in answer.output]
            assert referred <= {item["type"] for item in items} | {"reasoning"}
            sent = [
                {"type": "item_reference", "id": item["id"]} if item["type"] in referred else item
                for item in items
            ]
            (call,) = [item for item in items if item["type"] == "function_call"]
            result = {"type": "function_call_output", "call_id": call["call_id"], "output": "5"}
            again = await ask(client, [SYSTEM, ASK, *sent, result], "plain")
            assert again.output_text == "It is 5."
        one, two = world.calls(session)
        assert two.parent_call_id == one.id
        assert world.break_of(two) is None
        # After a restart the request is read from the store.
        await world.stop()
        await world.start()
        async with speaking(world, session) as client:
            said = {"type": "item_reference", "id": again.output[-1].id}
            third = await ask(
                client, [SYSTEM, ASK, *sent, result, said, {"role": "user", "content": "And b?"}], "plain"
            )
            assert third.output_text
        third_call = world.calls(session)[2]
        assert third_call.parent_call_id == two.id
        assert world.break_of(third_call) is None


@pytest.mark.parametrize(
    "name", ["msg_1", "msg_066159a186a86d8926e36ead_0", "msg_{call}_3", "fc_{call}_0", "rs_{call}_0"]
)
async def test_a_reference_to_nothing_is_refused_in_openais_words(make_world: MakeWorld, name: str) -> None:
    async with make_world(DONE) as world:
        session = await world.open()
        async with speaking(world, session) as client:
            await ask(client, [ASK], "plain")
            name = name.format(call=world.calls(session)[0].id)
            with pytest.raises(BadRequestError, match="not found"):
                await ask(client, [ASK, {"type": "item_reference", "id": name}, ASK], "plain")


async def test_reasoning_that_comes_back_as_a_message_of_its_own_is_reasoning(make_world: MakeWorld) -> None:
    """As pydantic-ai sends it. Alone, such a message is text."""
    first = f"<think>\nHm, a.\n</think>\n\n{wanted(('get', {'key': 'a'}), text='I look.')}"
    async with make_world(first, DONE) as world:
        session = await world.open()
        async with speaking(world, session) as client:
            answer = await ask(client, [SYSTEM, ASK], "plain")
            (call,) = [item for item in answer.output if item.type == "function_call"]
            said = [item.content[0].text for item in answer.output if item.type == "message"]
            thought = [item.summary[0].text for item in answer.output if item.type == "reasoning"]
            sent = [{"role": "assistant", "content": f"<think>\n{text}\n</think>"} for text in thought]
            sent += [{"role": "assistant", "content": text} for text in said]
            sent.append(
                {"type": "function_call", "call_id": call.call_id, "name": "get", "arguments": call.arguments}
            )
            sent.append({"type": "function_call_output", "call_id": call.call_id, "output": "5"})
            await ask(client, [SYSTEM, ASK, *sent], "plain")
        one, two = world.calls(session)
        assert two.parent_call_id == one.id
        assert world.break_of(two) is None
