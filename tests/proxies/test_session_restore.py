"""The requests of a session as a restarted proxy reads them back: the same, in every protocol, as they
were held before.
"""

from typing import Any, Literal

import httpx
import pytest
from sqlalchemy import update

from harnessgym.proxy_client import OpenedSession
from harnessgym.run_config.session import SessionOptions
from harnessgym.store.tables import calls as calls_table
from harnessgym.traces.diagnosis import CallConversation
from proxies.served_policies import ServedPolicies
from proxies.session_restore import latest_requests
from tests.proxies.conftest import MakeWorld, World

pytestmark = pytest.mark.anyio
END = "<|im_end|>"
Held = list[CallConversation]


async def held(world: World, session: OpenedSession) -> Held:
    found = await world.proxy.sessions.by_key(session.key)
    assert found is not None
    return found.policy_context(None).conversations.newest_first()


async def before_and_after(world: World, session: OpenedSession) -> tuple[Held, Held]:
    """What is held of a session's calls by this process, and by the next one."""
    before = await held(world, session)
    await world.stop()
    await world.start()
    return before, await held(world, session)


async def post(world: World, session: OpenedSession, path: str, body: dict[str, Any]) -> httpx.Response:
    response = await world.http.post(f"{world.base(session)}{path}", json=body)
    assert response.status_code == 200, response.text
    return response


def bodies(question: str) -> dict[str, dict[str, Any]]:
    """A request of each protocol, by path."""
    asked = [{"role": "user", "content": question}]
    return {
        "/v1/chat/completions": {
            "model": "m",
            "messages": [{"role": "system", "content": "Be brief."}, *asked],
        },
        "/v1/messages": {"model": "m", "max_tokens": 64, "system": "Be brief.", "messages": asked},
        "/v1/responses": {"model": "m", "instructions": "Be brief.", "input": question},
        "/v1beta/models/m:generateContent": {"contents": [{"role": "user", "parts": [{"text": question}]}]},
    }


@pytest.mark.parametrize("path", list(bodies("")))
async def test_every_protocol_is_read_back(make_world: MakeWorld, path: str) -> None:
    async with make_world(f"<think>\nhm\n</think>\n\nOne.{END}", f"Two.{END}") as world:
        session = await world.open()
        for question in ("What?", "And then?"):
            await post(world, session, path, bodies(question)[path])
        before, after = await before_and_after(world, session)
        assert len(after) == 2
        assert after == before


async def test_a_conversation_that_is_continued_by_id_is_read_back_whole(make_world: MakeWorld) -> None:
    async with make_world(f"One.{END}", f"Two.{END}", f"Three.{END}") as world:
        session = await world.open()
        previous: dict[str, str] = {}
        for question in ("What?", "And then?", "And then?"):
            body = {"model": "m", "instructions": f"Answer {question}", "input": question, **previous}
            previous = {
                "previous_response_id": (await post(world, session, "/v1/responses", body)).json()["id"]
            }
        before, after = await before_and_after(world, session)
        assert after == before
        assert [message.content for message in after[0].whole] == [
            "Answer And then?", "What?", "One.", "And then?", "Two.", "And then?", "Three.",
        ]  # fmt: skip


@pytest.mark.parametrize(("constraints", "said"), [("prompt", True), ("refuse", False)])
async def test_what_was_demanded_is_read_back(
    make_world: MakeWorld, constraints: Literal["prompt", "refuse"], said: bool
) -> None:
    tools = [{"type": "function", "function": {"name": "get", "parameters": {"type": "object"}}}]
    async with make_world(f"Yes.{END}") as world:
        session = await world.open(options=SessionOptions(constraints=constraints))
        body = {**bodies("What?")["/v1/chat/completions"], "tools": tools, "parallel_tool_calls": False}
        await post(
            world,
            session,
            "/v1/chat/completions",
            {**body, "response_format": {"type": "json_object"}} if said else body,
        )
        before, after = await before_and_after(world, session)
        assert after == before
        assert ("Answer with one JSON object" in after[0].messages[0].content) is said


async def test_raw_prompts_have_nothing_to_compare(make_world: MakeWorld) -> None:
    async with make_world(f"One.{END}") as world:
        session = await world.open()
        await post(world, session, "/v1/completions", {"model": "m", "prompt": "What?"})
        assert await before_and_after(world, session) == ([], [])


async def test_only_the_latest_branches_are_read_and_only_the_last_call_of_each(
    make_world: MakeWorld,
) -> None:
    async with make_world(f"One.{END}") as world:
        session = await world.open()
        for number in range(18):
            await world.chat(session.key, [{"role": "user", "content": f"Question {number}?"}])
        asked = [{"role": "user", "content": "Question 17?"}, {"role": "assistant", "content": "One."}]
        await world.chat(session.key, [*asked, {"role": "user", "content": "Sure?"}])
        before, after = await before_and_after(world, session)
        assert after == before
        recorded, segments = world.calls(session), world.segments(session)
        read = latest_requests(
            world.store, recorded, segments, ServedPolicies.alone(world.language).read, SessionOptions()
        )
        assert list(read) == [call.id for call in recorded if call.ordinal in (*range(2, 17), 18)]


async def test_a_call_of_a_protocol_that_is_gone_is_left_out(make_world: MakeWorld) -> None:
    async with make_world(f"One.{END}") as world:
        session = await world.open()
        for question in ("What?", "Why?"):
            await post(world, session, "/v1/chat/completions", bodies(question)["/v1/chat/completions"])
        gone = world.calls(session)[0].id
        world.store.write(
            lambda conn: conn.execute(
                update(calls_table).where(calls_table.c.id == gone).values(protocol="gone")
            )
        )
        before, after = await before_and_after(world, session)
        assert after == before[:1]
