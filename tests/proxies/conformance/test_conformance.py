"""One contract over every protocol, whole and streamed, with the official SDKs as clients.

Asked of each: what the policy sampled is what the client reads and what the store has, token by token; the
next turn continues those very tokens; what cannot be done is refused as the provider would; and whatever
happens to a connection or a worker, a call is one call.
"""

import asyncio
from dataclasses import replace

import pytest

from harnessgym.message import Message, ToolSpec
from harnessgym.proxy_client import OpenedSession
from harnessgym.traces.trajectories import rows_of
from harnessgym.traces.verification.verify import verify
from proxies.upstreams.scripted import Failure, ScriptedUpstream
from tests.proxies.conformance.clients import CLIENTS, Asked, Client, Reply
from tests.proxies.conftest import MakeWorld, World

pytestmark = pytest.mark.anyio
END = "<|im_end|>"
CALL = '<tool_call>\n{"name": "find", "arguments": {"key": "a"}}\n</tool_call>'
PARALLEL = f'Both.\n{CALL}\n<tool_call>\n{{"name": "price", "arguments": {{"id": "7"}}}}\n</tool_call>'
FIND = ToolSpec("find", "Find.", {"type": "object", "properties": {"key": {"type": "string"}}})
PRICE = ToolSpec("price", "Price.", {"type": "object", "properties": {"id": {"type": "string"}}})
HI = Message("user", "hi there")
every_client = pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.protocol)
chatting = pytest.mark.parametrize(
    "client", [client for client in CLIENTS if client.chats], ids=lambda client: client.protocol
)
either_way = pytest.mark.parametrize("stream", [False, True], ids=["json", "sse"])


async def closes(world: World, session: object) -> None:
    """The session's account closes and nothing in the store contradicts itself."""
    await world.control.seal(session.session_id)  # type: ignore[attr-defined]
    trajectory = world.store.read(lambda conn: rows_of(conn, world.rollout_id, group_id="g"))
    assert (
        trajectory.trained + sum(item.end - item.start for item in trajectory.exclusions)
        == trajectory.sampled
    )
    findings = [finding for finding in verify(world.store).findings if finding.kind != "span_version"]
    assert findings == []


async def ask_twice(world: World, session: OpenedSession, client: Client, *, stream: bool) -> Reply:
    """Two turns; the first reply."""
    first = await client.ask(world.base(session), session.key, Asked([HI]), stream=stream)
    history = [HI, first.messages[0], Message("user", "and?")]
    await client.ask(world.base(session), session.key, Asked(history), stream=stream)
    return first


@every_client
@either_way
async def test_text(make_world: MakeWorld, client: Client, stream: bool) -> None:
    text = "Hello wörld 🎉\nand more."
    async with make_world(text + END) as world:
        session = await world.open()
        reply = await client.ask(world.base(session), session.key, Asked([HI]), stream=stream)
        assert [message.content for message in reply.messages] == [text]
        assert reply.finish == ["stop"]
        (call,) = world.calls(session)
        assert list(world.completion(session, call).ids) == world.text(text + END)
        assert (reply.prompt_tokens, reply.completion_tokens) == (call.prompt_len, call.completion_len)
        assert (await world.status(session, 0, "delivered")).protocol == client.protocol
        await closes(world, session)


@chatting
@either_way
async def test_the_next_turn_continues_the_tokens(
    make_world: MakeWorld, client: Client, stream: bool
) -> None:
    async with make_world(f"One.{END}", f"Two.{END}") as world:
        session = await world.open()
        await ask_twice(world, session, client, stream=stream)
        first, second = world.calls(session)
        assert second.parent_call_id == first.id
        assert world.break_of(second) is None
        before = [*world.prompt(session, first), *world.completion(session, first).ids]
        assert world.prompt(session, second)[: len(before)] == before
        await closes(world, session)


@either_way
async def test_a_cut_completion_is_continued_by_its_text(make_world: MakeWorld, stream: bool) -> None:
    (client,) = (client for client in CLIENTS if not client.chats)
    async with make_world(f"One two three four five.{END}") as world:
        session = await world.open()
        reply = await client.ask(world.base(session), session.key, Asked([HI], max_tokens=3), stream=stream)
        assert reply.finish == ["length"]
        longer = [HI, reply.messages[0], Message("user", " so")]
        await client.ask(world.base(session), session.key, Asked(longer), stream=stream)
        first, second = world.calls(session)
        assert second.parent_call_id == first.id
        await closes(world, session)


@chatting
@either_way
@pytest.mark.parametrize(
    "said", [CALL, PARALLEL, f"<think>\nhm\nhm\n</think>\n\n{CALL}"], ids=["one", "parallel", "reasoned"]
)
async def test_tool_calls(make_world: MakeWorld, client: Client, stream: bool, said: str) -> None:
    async with make_world(said + END, f"Done.{END}") as world:
        session = await world.open()
        asked = Asked([Message("system", "Use tools."), HI], (FIND, PRICE))
        reply = await client.ask(world.base(session), session.key, asked, stream=stream)
        (answer,) = reply.messages
        wanted = [("find", {"key": "a"}), ("price", {"id": "7"})][: 2 if said == PARALLEL else 1]
        assert [(call.name, call.parsed) for call in answer.tool_calls] == wanted
        assert reply.finish == ["tool_calls"]
        assert answer.reasoning == ("hm\nhm" if "<think>" in said else "")
        assert len({call.id for call in answer.tool_calls}) == len(wanted)
        results = [Message("tool", f"{call.name} says 3", tool_call_id=call.id) for call in answer.tool_calls]
        later = replace(asked, messages=[*asked.messages, answer, *results])
        final = await client.ask(world.base(session), session.key, later, stream=stream)
        assert final.messages[0].content == "Done."
        first, second = world.calls(session)
        assert second.parent_call_id == first.id
        assert world.break_of(second) is None
        await closes(world, session)


@chatting
@either_way
async def test_reasoning(make_world: MakeWorld, client: Client, stream: bool) -> None:
    async with make_world(f"<think>\nI wonder.\n</think>\n\nYes.{END}", f"No.{END}") as world:
        session = await world.open()
        reply = await ask_twice(world, session, client, stream=stream)
        assert (reply.messages[0].reasoning, reply.messages[0].content) == ("I wonder.", "Yes.")
        assert reply.reasoning_tokens in (None, len(world.text("\nI wonder.\n")))
        first, second = world.calls(session)
        assert second.parent_call_id == first.id


@chatting
@either_way
async def test_a_malformed_tool_call_is_text(make_world: MakeWorld, client: Client, stream: bool) -> None:
    broken = '<tool_call>\n{"name": "find", "arguments": {"key"\n</tool_call>'
    async with make_world(broken + END) as world:
        session = await world.open()
        reply = await client.ask(world.base(session), session.key, Asked([HI], (FIND,)), stream=stream)
        assert reply.messages[0].tool_calls == ()
        assert "find" in reply.messages[0].content
        assert reply.finish == ["stop"]


@chatting
@either_way
async def test_images_are_refused_by_a_policy_that_cannot_see(
    make_world: MakeWorld, client: Client, stream: bool
) -> None:
    async with make_world(f"Yes.{END}") as world:
        session = await world.open()
        shown = Message("user", "what is it?", images=("data:image/png;base64,iVBORw0KGgo=",))
        with pytest.raises(client.refused, match="image"):
            await client.ask(world.base(session), session.key, Asked([shown]), stream=stream)
        assert world.calls(session) == []


@pytest.mark.parametrize(
    "client", [client for client in CLIENTS if client.siblings], ids=lambda client: client.protocol
)
@either_way
async def test_siblings(make_world: MakeWorld, client: Client, stream: bool) -> None:
    async with make_world(f"One.{END}", f"Two, longer.{END}") as world:
        session = await world.open()
        reply = await client.ask(world.base(session), session.key, Asked([HI], n=2), stream=stream)
        assert sorted(message.content for message in reply.messages) == ["One.", "Two, longer."]
        assert reply.finish == ["stop", "stop"]
        first, second = world.calls(session)
        assert first.prompt_segment == second.prompt_segment
        assert reply.completion_tokens == (first.completion_len or 0) + (second.completion_len or 0)
        await closes(world, session)


@pytest.mark.parametrize(
    "client",
    [client for client in CLIENTS if client.protocol != "responses"],
    ids=lambda client: client.protocol,
)
@either_way
async def test_a_stop_string(make_world: MakeWorld, client: Client, stream: bool) -> None:
    async with make_world("first HALT second") as world:
        session = await world.open()
        reply = await client.ask(world.base(session), session.key, Asked([HI], stop=("HALT",)), stream=stream)
        assert reply.messages[0].content == "first "
        assert reply.finish == ["stop"]
        assert list(world.completion(session, world.calls(session)[0]).ids) == world.text("first HALT second")


@every_client
@either_way
async def test_length(make_world: MakeWorld, client: Client, stream: bool) -> None:
    async with make_world(f"One two three four five six seven.{END}") as world:
        session = await world.open()
        reply = await client.ask(world.base(session), session.key, Asked([HI], max_tokens=16), stream=stream)
        assert reply.finish == ["length"]
        assert reply.completion_tokens == 16
        assert world.calls(session)[0].finish_reason == "length"


@every_client
@either_way
async def test_overflow_is_the_providers_own_error(
    make_world: MakeWorld, client: Client, stream: bool
) -> None:
    async with make_world(f"Yes.{END}", max_length=64) as world:
        session = await world.open()
        with pytest.raises(client.refused, match=r"(?i)maximum|too long|exceeds"):
            await client.ask(
                world.base(session), session.key, Asked([Message("user", "long " * 100)]), stream=stream
            )
        assert world.calls(session) == []


@every_client
@either_way
async def test_a_client_that_leaves_ends_its_call_after_the_grace_time(
    make_world: MakeWorld, client: Client, stream: bool
) -> None:
    async with make_world(f"One two three four.{END}", disconnect_grace_s=0.2) as world:
        session = await world.open()
        upstream = world.scripted("w0")
        upstream.gate.clear()
        task = asyncio.create_task(client.ask(world.base(session), session.key, Asked([HI]), stream=stream))
        await world.status(session, 0, "intent")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert (await world.status(session, 0, "aborted")).completion_len == 0
        assert upstream.cancelled == 1
        await closes(world, session)


@every_client
@either_way
async def test_a_client_that_comes_back_gets_the_same_call(
    make_world: MakeWorld, client: Client, stream: bool
) -> None:
    async with make_world(f"One.{END}", f"Another.{END}") as world:
        session = await world.open()
        world.scripted("w0").gate.clear()
        task = asyncio.create_task(client.ask(world.base(session), session.key, Asked([HI]), stream=stream))
        await world.status(session, 0, "intent")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        again = asyncio.create_task(client.ask(world.base(session), session.key, Asked([HI]), stream=stream))
        await asyncio.sleep(0.1)
        world.scripted("w0").gate.set()
        assert (await again).messages[0].content == "One."
        assert len(world.calls(session)) == 1
        assert (await world.status(session, 0, "delivered")).completion_len == len(world.text(f"One.{END}"))


@every_client
@either_way
async def test_a_worker_that_dies_mid_answer_is_not_noticed(
    make_world: MakeWorld, client: Client, stream: bool
) -> None:
    text = "One two three four five."
    answers: dict[str, ScriptedUpstream] = {}
    async with make_world(upstreams=answers) as world:  # type: ignore[arg-type]
        ids = world.text(text + END)

        def rest(prompt: object, _: object) -> list[int]:
            given = list(prompt)  # type: ignore[call-overload]
            done = next((n for n in range(len(ids), 0, -1) if given[-n:] == ids[:n]), 0)
            return ids[done:]

        for name, failures in (("w0", [Failure(after=4)]), ("w1", [Failure(after=3), None])):
            await world.add_worker(name, ScriptedUpstream(rest, chunk=2, failures=failures))
        session = await world.open()
        reply = await client.ask(world.base(session), session.key, Asked([HI]), stream=stream)
        assert reply.messages[0].content == text
        (call,) = world.calls(session)
        assert list(world.completion(session, call).ids) == ids
        await closes(world, session)
