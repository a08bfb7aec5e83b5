"""Replays through a real proxy: a harness gets its recorded answers again, and recorded requests their
recorded prompts.
"""

import asyncio
import json
from typing import Any

import pytest
from sqlalchemy import delete, text, update

from harnessgym.errors import StoreError
from harnessgym.proxy_client import OpenedSession
from harnessgym.run_config.session import SessionOptions
from harnessgym.store.tables import bodies
from harnessgym.store.tables import calls as calls_table
from harnessgym.traces.completions import Languages
from harnessgym.traces.replay import replay
from proxies.replaying import replay_rollout
from proxies.upstreams.scripted import ScriptedUpstream
from tests.proxies.conftest import POLICY, MakeWorld, World

pytestmark = pytest.mark.anyio
TOOLS = [
    {
        "type": "function",
        "function": {"name": "bash", "parameters": {"properties": {"command": {"type": "string"}}}},
    }
]
BASH = '<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call><|im_end|>'


async def harness(
    world: World, session: OpenedSession, result: str = "a.txt", again: str = "Look again."
) -> list[Any]:
    """A small agent loop: two turns with a tool, then a compaction that breaks the conversation."""
    talk: list[Any] = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Look."}]
    said = []
    for _ in range(2):
        answered = await world.chat(session.key, talk, tools=TOOLS)
        if answered.status_code != 200:
            return [*said, answered]
        message = answered.json()["choices"][0]["message"]
        said.append(message)
        talk.append({key: message[key] for key in ("role", "content", "tool_calls") if key in message})
        made = message.get("tool_calls") or ()
        talk += [{"role": "tool", "tool_call_id": call["id"], "content": result} for call in made]
    short = [talk[0], {"role": "user", "content": again}]
    answered = await world.chat(session.key, short, tools=TOOLS)
    return [*said, answered.json()["choices"][0]["message"] if answered.status_code == 200 else answered]


def without_ids(said: list[Any]) -> Any:
    return [[item["content"], [call["function"] for call in item.get("tool_calls") or ()]] for item in said]


async def test_a_harness_gets_the_recorded_answers_again(make_world: MakeWorld) -> None:
    async with make_world(BASH, "Fine.<|im_end|>", "Again: fine.<|im_end|>", "never<|im_end|>") as world:
        world.scripted("w0").version = 3
        await world.add_worker("w0", world.scripted("w0"))
        recorded = await world.open()
        first = await harness(world, recorded)
        asked = len(world.scripted("w0").asked)
        for name in (world.rollout_id, recorded.session_id):
            replayed = await world.open(options=SessionOptions(replay=name))
            assert without_ids(await harness(world, replayed)) == without_ids(first)
            for one, other in zip(world.calls(recorded), world.calls(replayed), strict=True):
                assert world.prompt(recorded, one) == world.prompt(replayed, other)
                old, new = world.completion(recorded, one), world.completion(replayed, other)
                assert (list(old.ids), old.logprobs) == (list(new.ids), new.logprobs)
                assert (one.version_spans, one.finish_reason) == (other.version_spans, other.finish_reason)
                assert [span.version for span in other.version_spans] == [3]
        assert len(world.scripted("w0").asked) == asked == 3


async def test_the_first_divergence_ends_the_session_with_a_difference(make_world: MakeWorld) -> None:
    async with make_world(BASH, "Fine.<|im_end|>", "Again: fine.<|im_end|>") as world:
        recorded = await world.open()
        await harness(world, recorded)
        replayed = await world.open(options=SessionOptions(replay=recorded.session_id))
        *_, refused = await harness(world, replayed, result="b.txt")
        assert refused.status_code == 403
        assert refused.headers["x-should-retry"] == "false"
        message = refused.json()["error"]["message"]
        assert "message 3 (tool)" in message
        assert "+b.txt" in message
        assert world.calls(recorded)[1].id in message
        *_, still = await harness(world, replayed)
        assert still.json()["error"]["message"] == message
        assert [call.status for call in world.calls(replayed)][-1] == "error"


async def test_what_is_not_there_cannot_be_replayed(make_world: MakeWorld) -> None:
    async with make_world("x<|im_end|>") as world:
        session = await world.open(options=SessionOptions(replay="nobody"))
        refused = await world.chat(session.key, [{"role": "user", "content": "hi"}])
        assert refused.status_code == 502
        assert "no rollout or session 'nobody'" in json.dumps(refused.json())
        with pytest.raises(StoreError, match="no rollout or session"):
            await replay_rollout(world.store, "nobody", {None: world.language})


async def test_recorded_requests_give_the_recorded_prompts(make_world: MakeWorld) -> None:
    async with make_world(
        BASH, "Fine.<|im_end|>", "Again: fine.<|im_end|>", "Again: fine.<|im_end|>"
    ) as world:
        for session in (await world.open(), await world.open(history="template")):
            await harness(world, session)
        body = {"model": "m", "input": "hi", "store": True}
        base = world.base(session)
        answered = (await world.http.post(f"{base}/v1/responses", json=body)).json()
        more = {"model": "m", "input": "and?", "previous_response_id": answered["id"]}
        assert (await world.http.post(f"{base}/v1/responses", json=more)).status_code == 200
        raw = {"model": "m", "prompt": "Once upon", "max_tokens": 5}
        assert (await world.http.post(f"{base}/v1/completions", json=raw)).status_code == 200
        before = world.store.read(lambda conn: conn.execute(text("SELECT count(*) FROM calls")).scalar_one())
        report = await replay_rollout(world.store, world.rollout_id, {None: world.language})
        assert report.skipped == ()
        assert report.ok, report
        assert len(report.calls) == before == 9
        found = await asyncio.to_thread(replay, world.store, world.rollout_id, Languages(POLICY))
        assert found == report
        after = world.store.read(lambda conn: conn.execute(text("SELECT count(*) FROM calls")).scalar_one())
        assert after == before


async def test_several_samples_of_one_request_are_a_call_each(make_world: MakeWorld) -> None:
    async with make_world("One.<|im_end|>", "Two.<|im_end|>", "Three.<|im_end|>") as world:
        session = await world.open()
        hi = [{"role": "user", "content": "hi"}]
        choices = (await world.chat(session.key, hi, n=2)).json()["choices"]
        await world.chat(session.key, [*hi, choices[1]["message"], *hi])
        report = await replay_rollout(world.store, world.rollout_id, {None: world.language})
        assert report.ok, report
        assert len(report.calls) == 3


async def test_an_interrupted_answer_that_is_gone_on_from_gives_its_prompts_again(
    make_world: MakeWorld,
) -> None:
    slow = ScriptedUpstream([[1]], delay_s=0.05)
    async with make_world(upstreams={"w0": slow}, disconnect_grace_s=0.0) as world:
        slow._script = [world.text("one two three four five six seven eight<|im_end|>")]
        session = await world.open()
        hi = [{"role": "user", "content": "hi"}]
        body = {"model": "m", "messages": hi, "stream": True}
        async with world.http.stream(
            "POST", f"{world.base(session)}/v1/chat/completions", json=body
        ) as stream:
            async for _ in stream.aiter_raw():
                break
        cut = await world.status(session, 0, "aborted")
        said = world.language.read(world.completion(session, cut).ids).content
        assert said
        assert (
            await world.chat(session.key, [*hi, {"role": "assistant", "content": said}, *hi])
        ).status_code == 200
        report = await replay_rollout(world.store, world.rollout_id, {None: world.language})
        assert report.ok, report
        assert len(report.calls) == 2


async def test_a_recorded_prompt_that_its_request_does_not_give_is_named(make_world: MakeWorld) -> None:
    async with make_world(BASH, "Fine.<|im_end|>", "Again: fine.<|im_end|>") as world:
        session = await world.open()
        await harness(world, session)
        one, two, _ = world.calls(session)
        swapped = (
            update(calls_table).where(calls_table.c.id == two.id).values(prompt_segment=one.prompt_segment)
        )
        world.store.write(lambda conn: conn.execute(swapped))
        report = await replay_rollout(world.store, world.rollout_id, {None: world.language})
        assert not report.ok
        assert [call.call_id for call in report.calls] == [one.id, two.id]
        assert "+" in str(report.calls[-1].problem).split("\n", 1)[1]
        length = len(world.prompt(session, one))
        assert f"differs from token {length} of {length} on" in str(report.calls[-1].problem)


async def test_a_request_that_is_not_there_any_more_is_not_the_same(make_world: MakeWorld) -> None:
    async with make_world("Fine.<|im_end|>") as world:
        session = await world.open()
        await world.chat(session.key, [{"role": "user", "content": "hi"}])
        world.store.write(lambda conn: conn.execute(delete(bodies)))
        report = await replay_rollout(world.store, world.rollout_id, {None: world.language})
        assert len(report.skipped) == 1
        assert not report.ok
