"""What agents do, as a real proxy records it: whole teams, parallel workers of one description, restarts,
retries, siblings.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from harnessgym.proxy_client import OpenedSession
from harnessgym.store import agents, edges, events, sessions
from harnessgym.store.edges import EdgeRow
from harnessgym.store.events import EventRow
from proxies.upstreams.scripted import Failure, ScriptedUpstream
from tests.proxies.conftest import MakeWorld, World

pytestmark = pytest.mark.anyio
LEFT, RIGHT = "Count the files of the left folder.", "Count the files of the right folder."
PLANNER, WORKER = {"role": "system", "content": "You plan."}, {"role": "system", "content": "You count."}
Json = dict[str, Any]


def calling(*calls: tuple[str, Json]) -> str:
    marked = (json.dumps({"name": name, "arguments": arguments}) for name, arguments in calls)
    return "".join(f"<tool_call>\n{call}\n</tool_call>" for call in marked) + "<|im_end|>"


def tool(name: str) -> Json:
    return {
        "type": "function",
        "function": {"name": name, "parameters": {"type": "object", "properties": {"text": {}}}},
    }


TOOLS = [tool("delegate"), tool("ls")]


def user(text: str) -> Json:
    return {"role": "user", "content": text}


async def ask(world: World, session: OpenedSession, messages: Sequence[Json], **fields: Any) -> Json:
    response = await world.chat(session.key, messages, **{"tools": TOOLS, **fields})
    assert response.status_code == 200, response.text
    message: Json = response.json()["choices"][0]["message"]
    return message


def results(answer: Json, *texts: str) -> list[Json]:
    """An answer, and the results of its calls."""
    said = [
        {"role": "tool", "tool_call_id": call["id"], "content": text}
        for call, text in zip(answer["tool_calls"], texts, strict=True)
    ]
    return [answer, *said]


def happened(world: World) -> list[EventRow]:
    return list(world.store.read(lambda conn: events.of_rollout(conn, world.rollout_id)))


def drawn(world: World) -> list[EdgeRow]:
    return world.store.read(lambda conn: edges.of_rollout(conn, world.rollout_id))


def kinds(world: World) -> list[str]:
    return [event.kind for event in happened(world)]


def scripts(world: World, *answers: str) -> None:
    """What the engine says from now on."""
    world.upstreams["w0"] = ScriptedUpstream([world.text(answer) for answer in answers])


async def restart(world: World, *answers: str) -> None:
    await world.stop()
    scripts(world, *answers)
    await world.start()


TEAM = [
    calling(("delegate", {"text": LEFT}), ("delegate", {"text": RIGHT})),
    "There are seven on the left.<|im_end|>",
    "There are eight on the right.<|im_end|>",
    "Fifteen.<|im_end|>",
]


async def team(world: World, session: OpenedSession, between: Any = None) -> None:
    """A planner with two workers of one description, which begin in the other order."""
    plan = await ask(world, session, [PLANNER, user("How many files?")])
    for at, task in enumerate((RIGHT, LEFT)):
        if between is not None:
            await between(1 + at)
        await ask(world, session, [WORKER, user(task)])
    if between is not None:
        await between(3)
    back = ["There are eight on the right.", "There are seven on the left."]
    await ask(world, session, [PLANNER, user("How many files?"), *results(plan, *back)])
    await world.control.seal(session.session_id)


def check_team(world: World) -> None:
    known = world.store.read(lambda conn: agents.of_sessions(conn, sessions_of(world)))
    main, *workers = known
    assert [worker.parent_agent_id for worker in workers] == [main.id] * 2
    found = happened(world)
    by_kind = {
        kind: [event for event in found if event.kind == kind] for kind in {event.kind for event in found}
    }
    assert {kind: len(items) for kind, items in by_kind.items()} == {
        "llm_call": 4, "tool_call": 2, "orchestrator_decision": 2, "spawn": 2, "message": 4, "tool_result": 2, "return": 2,
        "aggregate": 1, "despawn": 3,
    }  # fmt: skip
    said = {event.id: event.attributes["arguments"] for event in by_kind["tool_call"]}
    calls = {
        event.attributes["tool_call_id"]: event.attributes["arguments"] for event in by_kind["tool_call"]
    }
    spawned = {event.target_agent_id: calls[event.attributes["tool_call_id"]] for event in by_kind["spawn"]}
    assert [json.loads(spawned[worker.id])["text"] for worker in workers] == [RIGHT, LEFT]
    assert {event.confidence for event in by_kind["spawn"]} == {0.95}
    assert [event.attributes["decision"] for event in by_kind["orchestrator_decision"]] == [
        "delegate",
        "stop",
    ]
    assert {call.id for call in found if call.kind == "llm_call"} == {
        call.call_id for call in by_kind["llm_call"]
    }
    times = {event.id: event.t for event in found}
    assert all(times[edge.source_event_id] <= times[edge.target_event_id] for edge in drawn(world))
    assert len(said) == 2


def sessions_of(world: World) -> list[str]:
    return world.store.read(lambda conn: sessions.of_rollout(conn, world.rollout_id))


async def test_a_planner_and_two_workers_of_one_description(make_world: MakeWorld) -> None:
    async with make_world(*TEAM) as world:
        await team(world, await world.open())
        check_team(world)


async def test_the_same_across_restarts(make_world: MakeWorld) -> None:
    async with make_world(*TEAM) as world:
        await team(world, await world.open(), lambda done: restart(world, *TEAM[done:]))
        check_team(world)


async def test_events_share_their_calls_transactions(make_world: MakeWorld) -> None:
    async with make_world(calling(("ls", {})), "Done.<|im_end|>") as world:
        session = await world.open()
        engine = world.scripted("w0")
        first = await ask(world, session, [PLANNER, user("Look.")])
        assert kinds(world) == ["llm_call", "tool_call"]
        engine.gate.clear()
        asking = asyncio.create_task(
            ask(world, session, [PLANNER, user("Look."), *results(first, "nothing")])
        )
        await world.status(session, 1, "intent")
        assert sorted(kinds(world)) == ["llm_call", "llm_call", "tool_call", "tool_result"]
        engine.gate.set()
        await asking
        assert len(kinds(world)) == 4


async def test_a_retry_makes_nothing_twice(make_world: MakeWorld) -> None:
    async with make_world(calling(("ls", {}))) as world:
        session = await world.open()
        body = {"model": "m", "messages": [PLANNER, user("Look.")], "tools": TOOLS}
        url = f"{world.proxy.url}/s/{session.key}/v1/chat/completions"
        for _ in range(2):
            assert (
                await world.http.post(url, json=body, headers={"x-stainless-retry-count": "1"})
            ).status_code == 200
        assert kinds(world) == ["llm_call", "tool_call"]


async def test_an_intent_that_is_taken_up_decides_once(make_world: MakeWorld) -> None:
    async with make_world("unused<|im_end|>") as world:
        session = await world.open()
        first, control = world.proxy, world.control
        world.scripted("w0").gate.clear()
        asking = asyncio.create_task(ask(world, session, [PLANNER, user("Look.")]))
        await world.status(session, 0, "intent")
        scripts(world, calling(("ls", {})))
        await world.start()
        assert (await ask(world, session, [PLANNER, user("Look.")]))["tool_calls"]
        assert kinds(world) == ["llm_call", "tool_call"]
        await control.aclose()
        asking.cancel()
        await first.stop()


async def test_siblings_act_once_one_is_gone_on_with(make_world: MakeWorld) -> None:
    async with make_world(
        calling(("ls", {"text": "a"})), calling(("ls", {"text": "b"})), "Done.<|im_end|>"
    ) as world:
        session = await world.open()
        response = await world.chat(session.key, [PLANNER, user("Look.")], tools=TOOLS, n=2)
        second = response.json()["choices"][1]["message"]
        assert kinds(world) == ["llm_call", "llm_call"]
        await ask(world, session, [PLANNER, user("Look."), *results(second, "nothing")])
        (acted,) = [event for event in happened(world) if event.kind == "tool_call"]
        assert acted.attributes["tool_call_id"] == second["tool_calls"][0]["id"]


async def test_sealing_twice_ends_nothing_twice(make_world: MakeWorld) -> None:
    async with make_world("Hello.<|im_end|>") as world:
        session = await world.open()
        await ask(world, session, [user("Hi")])
        await asyncio.gather(*(world.control.seal(session.session_id, grace_s=0.0) for _ in range(2)))
        await world.control.seal(session.session_id)
        assert kinds(world) == ["llm_call", "orchestrator_decision", "despawn"]


async def test_a_call_that_fails_decides_nothing_and_its_repetition_reads_the_same(
    make_world: MakeWorld,
) -> None:
    async with make_world(calling(("ls", {})), "Done.<|im_end|>", "Done.<|im_end|>") as world:
        world.scripted("w0")._failures += [None, Failure(0, lost=False)]
        session = await world.open()
        first = await ask(world, session, [PLANNER, user("Look.")])
        messages = [PLANNER, user("Look."), *results(first, "nothing")]
        assert (await world.chat(session.key, messages, tools=TOOLS)).status_code >= 500
        await ask(world, session, messages)
        counts = Counter(edge.kind for edge in drawn(world))
        assert counts == {"causal": 1, "tool_dependency": 3}
        assert kinds(world).count("tool_result") == 1
