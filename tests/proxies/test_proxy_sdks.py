"""The official SDKs against the proxy: several turns, tools, streaming; the store has exactly the engine's
tokens.
"""

from typing import Any

import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

from proxies.upstreams.scripted import ScriptedUpstream
from tests.proxies.conftest import MakeWorld, World

pytestmark = pytest.mark.anyio
CALL = 'Let me see.\n<tool_call>\n{"name": "get", "arguments": {"key": "a"}}\n</tool_call><|im_end|>'
DONE = "It is 5.<|im_end|>"
SCHEMA = {"type": "object", "properties": {"key": {"type": "string"}}}


def check(world: World, session: Any) -> None:
    """Two calls on one branch, token for token what the engine was given and gave."""
    upstream = world.upstreams["w0"]
    assert isinstance(upstream, ScriptedUpstream)
    recorded = world.calls(session)
    assert [list(world.completion(session, call).ids) for call in recorded] == [
        world.text(CALL),
        world.text(DONE),
    ]
    assert [world.prompt(session, call) for call in recorded] == [
        list(asked.prompt) for asked in upstream.asked
    ]
    assert recorded[1].parent_call_id == recorded[0].id
    first = [*upstream.asked[0].prompt, *world.text(CALL)]
    assert list(upstream.asked[1].prompt[: len(first)]) == first


@pytest.mark.parametrize("stream", [False, True])
async def test_openai(make_world: MakeWorld, stream: bool) -> None:
    async with make_world(CALL, DONE) as world:
        session = await world.open()
        tools: Any = [
            {"type": "function", "function": {"name": "get", "description": "Get.", "parameters": SCHEMA}}
        ]
        messages: list[Any] = [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "What is a?"},
        ]
        async with AsyncOpenAI(
            base_url=f"{world.proxy.url}/v1", api_key=session.key, max_retries=0
        ) as client:
            answer = await _openai(client, messages, tools, stream)
            assert answer.tool_calls[0].function.arguments in ('{"key": "a"}', '{"key":"a"}')
            messages.append(answer.model_dump(exclude_none=True))
            messages.append({"role": "tool", "tool_call_id": answer.tool_calls[0].id, "content": "5"})
            assert (await _openai(client, messages, tools, stream)).content == "It is 5."
        check(world, session)


async def _openai(client: AsyncOpenAI, messages: list[Any], tools: Any, stream: bool) -> Any:
    if not stream:
        return (
            (await client.chat.completions.create(model="m", messages=messages, tools=tools))
            .choices[0]
            .message
        )
    async with client.chat.completions.stream(model="m", messages=messages, tools=tools) as events:
        return (await events.get_final_completion()).choices[0].message


@pytest.mark.parametrize("stream", [False, True])
async def test_anthropic(make_world: MakeWorld, stream: bool) -> None:
    async with make_world(CALL, DONE) as world:
        session = await world.open()
        tools: Any = [{"name": "get", "description": "Get.", "input_schema": SCHEMA}]
        messages: list[Any] = [{"role": "user", "content": "What is a?"}]
        async with AsyncAnthropic(base_url=world.proxy.url, api_key=session.key, max_retries=0) as client:
            answer = await _anthropic(client, messages, tools, stream)
            use = answer.content[-1]
            assert (answer.stop_reason, use.type, use.input) == ("tool_use", "tool_use", {"key": "a"})
            messages.append(
                {
                    "role": "assistant",
                    "content": [block.model_dump(exclude_none=True) for block in answer.content],
                }
            )
            result = {"type": "tool_result", "tool_use_id": use.id, "content": "5"}
            messages.append({"role": "user", "content": [result]})
            assert (await _anthropic(client, messages, tools, stream)).content[-1].text == "It is 5."
        check(world, session)


async def _anthropic(client: AsyncAnthropic, messages: list[Any], tools: Any, stream: bool) -> Any:
    options: dict[str, Any] = {
        "model": "m",
        "max_tokens": 100,
        "system": "Be brief.",
        "messages": messages,
        "tools": tools,
    }
    if not stream:
        return await client.messages.create(**options)
    async with client.messages.stream(**options) as events:
        return await events.get_final_message()
