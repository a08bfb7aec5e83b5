"""What was said, read back from what a real proxy recorded, in every protocol."""

from pathlib import Path
from typing import Any

import pytest

from harnessgym.harness import SideCallRule
from harnessgym.message import Message, ToolCall
from harnessgym.run_config.session import SessionOptions
from harnessgym.traces.completions import Languages
from harnessgym.traces.transcript import Transcript, transcript
from tests.proxies.conftest import POLICY, MakeWorld, World

pytestmark = pytest.mark.anyio
TOOL: dict[str, Any] = {"type": "object", "properties": {"name": {"type": "string"}}}
TOOLS = [{"type": "function", "function": {"name": "find", "description": "Finds.", "parameters": TOOL}}]
CALL = 'Looking.\n<tool_call>\n{"name": "find", "arguments": {"name": "red lamp"}}\n</tool_call><|im_end|>'
SYSTEM, HI = {"role": "system", "content": "Be short."}, {"role": "user", "content": "hi"}


def read(world: World, policy: Path | None = POLICY) -> Transcript:
    return world.store.read(lambda conn: transcript(conn, world.rollout_id, Languages(policy)))


async def look_up(world: World, key: str) -> dict[str, Any]:
    """A call of a tool, its result, and a last answer; the first answer as it was sent."""
    first = (await world.chat(key, [SYSTEM, HI], tools=TOOLS)).json()["choices"][0]["message"]
    result = {"role": "tool", "content": "47", "tool_call_id": first["tool_calls"][0]["id"]}
    await world.chat(key, [SYSTEM, HI, first, result], tools=TOOLS)
    answer: dict[str, Any] = first
    return answer


async def test_each_call_has_what_it_added_and_what_it_was_answered(make_world: MakeWorld) -> None:
    async with make_world(CALL, "It is 47.<|im_end|>") as world:
        session = await world.open()
        answer = await look_up(world, session.key)
        first, second = read(world).exchanges
        called = ToolCall(answer["tool_calls"][0]["id"], "find", '{"name": "red lamp"}')
        assert first.new == (Message("system", "Be short."), Message("user", "hi"))
        assert first.answer == Message("assistant", "Looking.", tool_calls=(called,))
        assert (first.answer_source, first.continues, first.missing) == ("tokens", None, ())
        assert [tool.name for tool in first.tools] == ["find"]
        assert (second.continues, second.shared) == (first.call.id, 3)
        assert second.new == (Message("tool", "47", tool_call_id=called.id),)
        assert second.answer == Message("assistant", "It is 47.")
        said = read(world).conversation(second.call.id)
        assert [message.role for message in said] == ["system", "user", "assistant", "tool", "assistant"]


async def test_without_the_policy_an_answer_is_missing_or_what_the_client_sent_back(
    make_world: MakeWorld,
) -> None:
    async with make_world(CALL, "It is 47.<|im_end|>") as world:
        session = await world.open()
        await look_up(world, session.key)
        first, second = read(world, None).exchanges
        assert first.answer_source == "replay"
        assert first.answer is not None
        assert first.answer.tool_calls[0].name == "find"
        assert second.new == (Message("tool", "47", tool_call_id=first.answer.tool_calls[0].id),)
        assert (second.answer, second.answer_source) == (None, None)
        assert "tokenizer" in second.missing[0]


async def test_a_folder_without_a_tokenizer_is_named(make_world: MakeWorld, tmp_path: Path) -> None:
    async with make_world("Hello.<|im_end|>") as world:
        session = await world.open()
        await world.chat(session.key, [HI])
        (found,) = read(world, tmp_path).exchanges
        assert found.answer is None
        assert str(tmp_path) in found.missing[0]


async def test_messages_and_responses_and_raw_prompts_are_read_alike(make_world: MakeWorld) -> None:
    async with make_world(*["Hello.<|im_end|>"] * 6) as world:
        session, other = await world.open(), await world.open()
        base, raw = world.base(session), world.base(other)
        body = {"model": "m", "max_tokens": 50, "system": "Be short.", "messages": [HI]}
        await world.http.post(f"{base}/v1/messages", json=body)
        replied = await world.http.post(f"{base}/v1/responses", json={"model": "m", "input": "hi there"})
        more = {"model": "m", "input": "and more", "previous_response_id": replied.json()["id"]}
        await world.http.post(f"{base}/v1/responses", json=more)
        await world.http.post(f"{raw}/v1/completions", json={"model": "m", "prompt": "Once"})
        longer = {"model": "m", "prompt": "OnceHello. And"}
        await world.http.post(f"{raw}/v1/completions", json=longer)
        found = read(world)
        by_protocol = {item.call.protocol: item for item in found.exchanges}
        assert by_protocol["messages"].new == (Message("system", "Be short."), Message("user", "hi"))
        third, last = by_protocol["responses"], by_protocol["completions"]
        assert [message.content for message in found.conversation(third.call.id)] == [
            "hi there",
            "Hello.",
            "and more",
            "Hello.",
        ]
        assert third.new == (Message("user", "and more"),)
        said = found.conversation(last.call.id)
        assert [message.content for message in said] == ["Once", "Hello.", " And", "Hello."]
        assert last.new == (Message("user", " And"),)


async def test_a_rewritten_history_says_how_much_it_shares(make_world: MakeWorld) -> None:
    async with make_world("One.<|im_end|>", "Two.<|im_end|>") as world:
        session = await world.open()
        first = (await world.chat(session.key, [SYSTEM, HI])).json()["choices"][0]["message"]
        await world.chat(session.key, [SYSTEM, {"role": "user", "content": "summary"}, first, HI])
        one, two = read(world).exchanges
        assert two.call.break_class is not None
        assert (two.continues, two.shared) == (one.call.id, 1)
        assert [message.content for message in two.new] == ["summary", "One.", "hi"]


async def test_stop_strings_end_what_is_read(make_world: MakeWorld) -> None:
    async with make_world("Hello. STOP and more<|im_end|>") as world:
        session = await world.open()
        reply = await world.chat(session.key, [HI], stop=["STOP"])
        (found,) = read(world).exchanges
        assert found.answer is not None
        assert found.answer.content == reply.json()["choices"][0]["message"]["content"]


async def test_side_calls_belong_to_nobody(make_world: MakeWorld) -> None:
    async with make_world("A title<|im_end|>") as world:
        rule = SideCallRule(name="title", kind="side", system_pattern="title")
        session = await world.open(options=SessionOptions(side_calls=(rule,)))
        await world.chat(session.key, [{"role": "system", "content": "Write a title."}, HI])
        (found,) = read(world).exchanges
        assert (found.agent, found.call.kind, found.call.side_call) == ("", "side", "title")
