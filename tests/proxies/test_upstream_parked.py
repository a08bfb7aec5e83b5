"""Parked calls: answered through the control routes, each by its id, or ended in one of the other ways."""

import asyncio
import json
from typing import Any

import httpx
import pytest
from sqlalchemy import select, update

from harnessgym.errors import ProxyError
from harnessgym.proxy_client import OpenedSession
from harnessgym.run_config.session import SessionOptions
from harnessgym.store import policies
from harnessgym.store.policies import PolicyVersion
from harnessgym.store.tables import calls, rollouts, segments
from harnessgym.traces.trajectories import Trajectory, rows_of
from harnessgym.traces.verification.verify import verify
from tests.proxies.conftest import MakeWorld, World

pytestmark = pytest.mark.anyio
HI = [{"role": "user", "content": "hi"}]
TOOLS = [
    {
        "type": "function",
        "function": {"name": "find", "parameters": {"properties": {"name": {"type": "string"}}}},
    }
]


async def park(world: World, **options: Any) -> OpenedSession:
    return await world.open(options=SessionOptions(upstream="parked", **options))


async def pending(world: World, session: OpenedSession, after: int | None = None) -> dict[str, Any]:
    found = await world.control.pending(session.session_id, timeout_s=60.0, after=after)
    shown: dict[str, Any] = found["pending"]
    assert shown is not None
    return shown


def ask(world: World, session: OpenedSession, text: str, **fields: Any) -> "asyncio.Task[httpx.Response]":
    return asyncio.create_task(world.chat(session.key, [{"role": "user", "content": text}], **fields))


def trajectory(world: World) -> Trajectory:
    return world.store.read(lambda conn: rows_of(conn, world.rollout_id, group_id="g"))


def publish(world: World, *versions: int) -> None:
    policy_id = world.store.read(lambda conn: conn.execute(select(rollouts.c.policy_id)).scalar_one())
    for number in versions:
        version = PolicyVersion(number, None, "full", "", 0, "", 0, True, False)
        world.store.write(lambda conn, version=version: policies.publish(conn, policy_id, version))


async def test_text_is_told_the_harness_recorded_without_logprobs_and_continued(
    make_world: MakeWorld,
) -> None:
    async with make_world("never asked<|im_end|>") as world:
        session = await park(world)
        first = ask(world, session, "hi")
        shown = await pending(world, session)
        assert shown["messages"] == HI
        assert shown["prompt_token_ids"] == world.prompt(session, await world.status(session, 0, "intent"))
        assert not first.done()
        await world.control.answer(session.session_id, shown["call_id"], text="Hello.")
        message = (await first).json()["choices"][0]["message"]
        assert message["content"] == "Hello."
        more = [*HI, {"role": "assistant", "content": "Hello."}, {"role": "user", "content": "and?"}]
        second = asyncio.create_task(world.chat(session.key, more))
        await world.control.answer(
            session.session_id, (await pending(world, session))["call_id"], text="Nothing."
        )
        assert (await second).json()["choices"][0]["finish_reason"] == "stop"
        one, two = world.calls(session)
        assert two.parent_call_id == one.id
        completion = world.completion(session, one)
        assert (completion.logprobs, one.version_spans) == (None, ())
        assert list(completion.ids) == world.text("Hello.<|im_end|>")
        found = trajectory(world)
        assert found.trained == 0
        assert {item.reason for item in found.exclusions} == {"text_only"}
        await world.control.seal(session.session_id)
        assert verify(world.store).findings == ()


async def test_a_message_with_tool_calls_becomes_the_policys_markup(make_world: MakeWorld) -> None:
    async with make_world("x") as world:
        session = await park(world)
        asked = ask(world, session, "price?", tools=TOOLS)
        shown = await pending(world, session)
        assert shown["tools"][0]["function"]["name"] == "find"
        said = {"content": "Looking.", "tool_calls": [{"name": "find", "arguments": {"name": "red lamp"}}]}
        await world.control.answer(session.session_id, shown["call_id"], message=said)
        choice = (await asked).json()["choices"][0]
        assert choice["finish_reason"] == "tool_calls"
        assert choice["message"]["content"] == "Looking."
        (call,) = choice["message"]["tool_calls"]
        assert json.loads(call["function"]["arguments"]) == {"name": "red lamp"}
        assert call["id"].startswith("call_")


async def test_tokens_with_logprobs_and_a_version_are_trained_on_and_without_never(
    make_world: MakeWorld,
) -> None:
    async with make_world("x") as world:
        publish(world, 3)
        session = await park(world)
        ids = world.text("Yes.<|im_end|>")
        for logprobs in ({"logprobs": [-0.5] * len(ids), "version": 3}, {}):
            asked = ask(world, session, f"sure? {bool(logprobs)}")
            await world.control.answer(
                session.session_id, (await pending(world, session))["call_id"], token_ids=ids, **logprobs
            )
            assert (await asked).json()["choices"][0]["message"]["content"] == "Yes."
        found = trajectory(world)
        assert (found.trained, found.sampled) == (len(ids), 2 * len(ids))
        (row,) = found.rows
        assert set(row.versions[row.mask == 1]) == {3}
        assert set(row.logprobs[row.mask == 1]) == {-0.5}
        assert [item.reason for item in found.exclusions] == ["text_only"]
        assert verify(world.store).findings == ()


async def test_verification_tells_what_was_said_from_what_was_sampled(make_world: MakeWorld) -> None:
    async with make_world("x") as world:
        publish(world, 3)
        session = await park(world)
        ids = world.text("Yes.<|im_end|>")
        answers: list[dict[str, Any]] = [
            {"text": "Yes."},
            {"token_ids": ids, "logprobs": [-0.5] * len(ids), "version": 3},
        ]
        for index, answer in enumerate(answers):
            asked = ask(world, session, f"sure? {index}")
            await world.control.answer(
                session.session_id, (await pending(world, session))["call_id"], **answer
            )
            await asked
        said, sampled = world.calls(session)
        await world.proxy.stop()
        assert verify(world.store).findings == ()
        claims = update(calls).where(calls.c.id == said.id).values(version_spans=[[0, len(ids), 3]])
        world.store.write(lambda conn: conn.execute(claims))
        assert {finding.kind for finding in verify(world.store).findings} == {
            "completion_hash",
            "span_coverage",
        }
        forgets = update(segments).where(segments.c.id == sampled.completion_segment).values(logprobs=None)
        world.store.write(lambda conn: conn.execute(forgets))
        named = {(finding.kind, finding.where) for finding in verify(world.store).findings}
        assert {("completion_hash", f"call {sampled.id}"), ("span_coverage", f"call {sampled.id}")} < named


async def test_a_cut_answer_has_no_end_of_turn(make_world: MakeWorld) -> None:
    async with make_world("x") as world:
        session = await park(world)
        asked = ask(world, session, "count")
        call_id = (await pending(world, session))["call_id"]
        await world.control.answer(session.session_id, call_id, text="1 2 3", finish_reason="length")
        assert (await asked).json()["choices"][0]["finish_reason"] == "length"
        assert list(world.completion(session, world.calls(session)[0]).ids) == world.text("1 2 3")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ({}, "exactly one"),
        ({"text": "a", "token_ids": [1]}, "exactly one"),
        ({"token_ids": []}, "at least one"),
        ({"token_ids": [-1]}, "token ids"),
        ({"text": "a", "logprobs": [-1.0], "version": 0}, "as many token_ids"),
        ({"token_ids": [1, 2], "logprobs": [-1.0], "version": 0}, "as many token_ids"),
        ({"token_ids": [1], "logprobs": [-1.0]}, "version"),
        ({"token_ids": [1], "logprobs": [0.5], "version": 0}, "not positive"),
        (
            {"message": {"content": "47", "reasoning": "The shipped template leaves this out."}},
            "cannot be written",
        ),
        ({"message": {"content": "47"}, "sure": True}, "Extra inputs"),
    ],
)
async def test_a_wrong_answer_is_refused_and_the_call_waits_on(
    make_world: MakeWorld, answer: dict[str, Any], reason: str
) -> None:
    async with make_world("x") as world:
        session = await park(world)
        asked = ask(world, session, "hi")
        call_id = (await pending(world, session))["call_id"]
        with pytest.raises(ProxyError, match=reason):
            await world.control.answer(session.session_id, call_id, **answer)
        assert (await pending(world, session))["call_id"] == call_id
        await world.control.answer(session.session_id, call_id, text="fine")
        assert (await asked).json()["choices"][0]["message"]["content"] == "fine"
        await world.control.answer(session.session_id, call_id, text="sent again, changes nothing")
        assert len(world.calls(session)) == 1


async def test_several_wait_at_once_and_each_gets_its_own_answer(make_world: MakeWorld) -> None:
    async with make_world("x") as world:
        session, other = await park(world), await park(world)
        siblings = ask(world, session, "hi", n=2)
        first, second = await pending(world, session), await pending(world, session, after=0)
        agent = ask(world, session, "a sub-agent's question")
        third = await pending(world, session, after=1)
        assert [call["ordinal"] for call in (first, second, third)] == [0, 1, 2]
        assert first["messages"] == second["messages"] != third["messages"]
        state = await world.control.pending(session.session_id, timeout_s=0)
        assert (state["waiting"], state["pending"]["call_id"]) == (3, first["call_id"])
        assert (await world.control.pending(other.session_id, timeout_s=0))["pending"] is None
        with pytest.raises(ProxyError, match="not pending"):
            await world.control.answer(other.session_id, third["call_id"], text="from elsewhere")
        await world.control.answer(session.session_id, third["call_id"], text="three")
        assert (await agent).json()["choices"][0]["message"]["content"] == "three"
        await world.control.answer(session.session_id, second["call_id"], text="two")
        assert not siblings.done()
        await world.control.answer(session.session_id, first["call_id"], text="one")
        assert [choice["message"]["content"] for choice in (await siblings).json()["choices"]] == [
            "one",
            "two",
        ]


async def test_who_waits_first_is_told_when_a_call_comes_or_the_time_is_over(make_world: MakeWorld) -> None:
    async with make_world("x") as world:
        session = await park(world)
        loop = asyncio.get_running_loop()
        began = loop.time()
        assert await world.control.pending(session.session_id, timeout_s=0.2) == {
            "pending": None, "waiting": 0, "sealed": False,
        }  # fmt: skip
        assert 0.2 <= loop.time() - began < 2.0
        poll = asyncio.create_task(pending(world, session))
        await asyncio.sleep(0.1)
        assert not poll.done()
        asked = ask(world, session, "hi")
        await world.control.answer(session.session_id, (await poll)["call_id"], text="there")
        assert (await asked).status_code == 200
        with pytest.raises(ProxyError, match="404"):
            await world.control.pending("nobody", timeout_s=0)
        with pytest.raises(ProxyError, match="404"):
            await world.control.answer("nobody", "x", text="a")
        with pytest.raises(ProxyError, match="not a number"):
            await world.control._ask("GET", f"/control/sessions/{session.session_id}/pending?timeout_s=soon")


async def test_nobody_answers_in_time(make_world: MakeWorld) -> None:
    async with make_world("x") as world:
        session = await park(world, answer_timeout_s=0.2)
        refused = await world.chat(session.key, HI)
        assert refused.status_code == 502
        assert "within 0.2 s" in refused.json()["error"]["message"]
        (call,) = world.calls(session)
        assert call.status == "error"
        with pytest.raises(ProxyError, match="not pending"):
            await world.control.answer(session.session_id, call.id, text="late")
        assert trajectory(world).incomplete is not None


async def test_a_client_that_leaves_withdraws_its_call_after_the_grace_time(make_world: MakeWorld) -> None:
    async with make_world("x", disconnect_grace_s=0.3) as world:
        session = await park(world)
        gone = ask(world, session, "hi")
        shown = await pending(world, session)
        gone.cancel()
        await asyncio.sleep(0.1)
        again = ask(world, session, "hi")  # back within the grace time: the same call
        await asyncio.sleep(0.4)
        assert (await pending(world, session))["call_id"] == shown["call_id"]
        again.cancel()
        await world.status(session, 0, "aborted")
        assert (await world.control.pending(session.session_id, timeout_s=0))["pending"] is None
        with pytest.raises(ProxyError, match="not pending"):
            await world.control.answer(session.session_id, shown["call_id"], text="late")
        assert verify(world.store).findings == ()


async def test_sealing_ends_parked_calls_and_tells_who_waits_for_more(make_world: MakeWorld) -> None:
    async with make_world("x") as world:
        session, empty = await park(world), await park(world)
        asked = ask(world, session, "hi")
        shown = await pending(world, session)
        polls = [
            asyncio.create_task(
                world.control.pending(session.session_id, timeout_s=60.0, after=shown["ordinal"])
            ),
            asyncio.create_task(world.control.pending(empty.session_id, timeout_s=60.0)),
        ]
        await asyncio.sleep(0.1)
        sealed = await world.control.seal(session.session_id, grace_s=0.1)
        await world.control.seal(empty.session_id, grace_s=0.1)
        assert sealed.calls == 1
        assert (await asked).status_code == 502
        for told in await asyncio.wait_for(asyncio.gather(*polls), 5.0):
            assert (told["pending"], told["sealed"]) == (None, True)
        with pytest.raises(ProxyError, match="not pending"):
            await world.control.answer(session.session_id, shown["call_id"], text="late")
        again = await world.control.pending(session.session_id, timeout_s=60.0)
        assert again["sealed"]
        assert [call.status for call in world.calls(session)] == ["aborted"]
        assert verify(world.store).findings == ()


async def test_an_answer_within_the_grace_time_of_a_seal_counts(make_world: MakeWorld) -> None:
    async with make_world("x") as world:
        session = await park(world)
        asked = ask(world, session, "hi")
        shown = await pending(world, session)
        sealing = asyncio.create_task(world.control.seal(session.session_id, grace_s=10.0))
        await asyncio.sleep(0.1)
        await world.control.answer(session.session_id, shown["call_id"], text="just in time")
        assert (await asked).json()["choices"][0]["message"]["content"] == "just in time"
        assert (await sealing).tokens == len(world.text("just in time<|im_end|>"))


async def test_a_stream_is_kept_alive_while_it_waits(make_world: MakeWorld) -> None:
    async with make_world("x", keepalive_s=0.05) as world:
        session = await park(world)
        body = {"model": "m", "messages": HI, "stream": True}
        pieces: list[bytes] = []

        async def listen() -> None:
            async with world.http.stream(
                "POST", f"{world.base(session)}/v1/chat/completions", json=body
            ) as response:
                pieces.extend([piece async for piece in response.aiter_raw()])

        listening = asyncio.create_task(listen())
        shown = await pending(world, session)
        await asyncio.sleep(0.4)
        await world.control.answer(session.session_id, shown["call_id"], text="At last.")
        await listening
        lines = b"".join(pieces).decode().splitlines()
        assert sum(line.startswith(":") for line in lines) >= 3
        chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
        assert "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks) == "At last."
        assert "data: [DONE]" in lines


async def test_after_a_restart_a_client_that_asks_again_is_parked_again(make_world: MakeWorld) -> None:
    async with make_world("x") as world:
        session = await park(world)
        lost = ask(world, session, "hi")
        shown = await pending(world, session)
        await world.stop()
        assert (await lost).status_code == 502
        await world.start()
        assert (await world.control.pending(session.session_id, timeout_s=0))["pending"] is None
        back = ask(world, session, "hi")
        again = await pending(world, session)
        assert (again["messages"], again["ordinal"]) == (shown["messages"], 1)
        await world.control.answer(session.session_id, again["call_id"], text="back")
        assert (await back).json()["choices"][0]["message"]["content"] == "back"
        first, second = world.calls(session)
        assert (first.finish_reason, first.completion_len, second.finish_reason) == ("abort", 0, "stop")
        assert verify(world.store).findings == ()


async def test_parked_sessions_and_others_do_not_meet(make_world: MakeWorld) -> None:
    async with make_world("from the engine<|im_end|>") as world:
        session, plain = await park(world), await world.open()
        asked = ask(world, session, "hi")
        await pending(world, session)
        assert (await world.chat(plain.key, HI)).json()["choices"][0]["message"][
            "content"
        ] == "from the engine"
        assert (await world.control.pending(plain.session_id, timeout_s=0))["waiting"] == 0
        assert len(world.scripted("w0").asked) == 1
        named = await world.open(options=SessionOptions(upstream="w0"))
        assert (await world.chat(named.key, HI)).status_code == 200
        nobody = await world.open(options=SessionOptions(upstream="teacher"))
        world.proxy.workers._wait_s = 0.2
        refused = await world.chat(nobody.key, HI)
        assert "No teacher worker" in refused.json()["error"]["message"]
        asked.cancel()


async def test_demands_that_only_the_policy_cannot_meet_reach_who_answers(make_world: MakeWorld) -> None:
    async with make_world("x") as world:
        session = await park(world)
        asked = ask(world, session, "hi", tools=TOOLS, tool_choice="required")
        shown = await pending(world, session)
        assert shown["tool_choice"] == "required"
        said = {"tool_calls": [{"name": "find", "arguments": '{"name": "lamp"}'}]}
        await world.control.answer(session.session_id, shown["call_id"], message=said)
        assert (await asked).json()["choices"][0]["finish_reason"] == "tool_calls"
