"""Contracts of a session that runs: the call after the one that breaks them, or that would, is refused."""

import asyncio
import json
from typing import Any

import pytest

from harnessgym.config import validate
from harnessgym.run_config.session import SessionOptions
from harnessgym.store import events
from harnessgym.traces.contracts import Contracts
from tests.proxies.conftest import MakeWorld, World

pytestmark = pytest.mark.anyio
HI = [{"role": "user", "content": "hi"}]
TOOLS = [
    {
        "type": "function",
        "function": {"name": "bash", "parameters": {"properties": {"command": {"type": "string"}}}},
    }
]


def bash(command: str) -> str:
    return f'<tool_call>\n{{"name": "bash", "arguments": {{"command": "{command}"}}}}\n</tool_call><|im_end|>'


def held_to(*raw: dict[str, Any], **options: Any) -> SessionOptions:
    return SessionOptions(
        contracts=validate(Contracts, {"contracts": list(raw)}, "the test").contracts, **options
    )


def refusals(world: World) -> list[dict[str, Any]]:
    found = world.store.read(lambda conn: events.of_rollout(conn, world.rollout_id, "refused_request"))
    return [event.attributes for event in found]


async def test_a_forbidden_call_is_answered_and_the_session_ended(make_world: MakeWorld) -> None:
    rule = {"kind": "forbidden_tool", "tool": "bash", "arguments": {"command": "rm"}, "name": "no removing"}
    async with make_world(bash("ls"), bash("rm x"), "never") as world:
        session = await world.open(options=held_to(rule))
        talk = list(HI)
        for _ in range(2):
            answered = await world.chat(session.key, talk, tools=TOOLS)
            assert answered.status_code == 200
            said = answered.json()["choices"][0]["message"]
            talk += [said, {"role": "tool", "tool_call_id": said["tool_calls"][0]["id"], "content": "done"}]
        refused = await world.chat(session.key, talk, tools=TOOLS)
        assert refused.status_code == 403
        assert "no removing" in refused.json()["error"]["message"]
        await world.control.seal(session.session_id)
        (event,) = refusals(world)
        assert event["limit"] == "contract"
        assert world.calls(session)[1].id in event["message"]
        assert len(world.calls(session)) == 2
        again = await world.open()
        assert (await world.chat(again.key, HI)).status_code == 200


@pytest.mark.parametrize(
    ("rule", "allowed"),
    [
        ({"kind": "budget", "calls": 2}, 2),
        ({"kind": "at_most", "what": {"step": "llm_call"}, "n": 1}, 1),
        ({"kind": "budget", "tokens": 3}, 2),
        ({"kind": "budget", "calls": 1, "per": "agent"}, 2),
        ({"kind": "must_return"}, 3),
    ],
)
async def test_a_call_that_would_break_a_contract_is_refused(
    make_world: MakeWorld, rule: dict[str, Any], allowed: int
) -> None:
    async with make_world("a<|im_end|>") as world:
        session = await world.open(options=held_to(rule))
        talk, statuses = list(HI), []
        for _ in range(3):
            answered = await world.chat(session.key, talk)
            statuses.append(answered.status_code)
            if answered.status_code == 200:
                talk += [answered.json()["choices"][0]["message"], {"role": "user", "content": "and?"}]
        assert statuses == [200] * allowed + [403] * (3 - allowed)


async def test_a_budget_of_seconds(make_world: MakeWorld) -> None:
    async with make_world("a<|im_end|>") as world:
        session = await world.open(options=held_to({"kind": "budget", "wall_s": 0.3}))
        assert (await world.chat(session.key, HI)).status_code == 200
        await asyncio.sleep(0.4)
        assert (await world.chat(session.key, [*HI, *HI])).status_code == 403


async def test_calls_in_flight_count_and_side_calls_do_not(make_world: MakeWorld) -> None:
    async with make_world("a<|im_end|>") as world:
        title = {"kind": "side", "name": "title", "user_pattern": "title"}
        session = await world.open(options=held_to({"kind": "budget", "calls": 2}, side_calls=(title,)))
        for _ in range(3):
            assert (
                await world.chat(session.key, [{"role": "user", "content": "a title"}])
            ).status_code == 200
        world.scripted("w0").gate.clear()
        asked = [
            asyncio.create_task(world.chat(session.key, [{"role": "user", "content": f"{n}"}]))
            for n in range(2)
        ]
        while world.proxy.relay.runner.in_flight < 2:
            await asyncio.sleep(0.01)
        assert (await world.chat(session.key, HI)).status_code == 403
        world.scripted("w0").gate.set()
        assert [answered.status_code for answered in await asyncio.gather(*asked)] == [200, 200]


async def test_contracts_hold_after_a_restart(make_world: MakeWorld) -> None:
    rules = ({"kind": "at_most", "what": {"tool": "bash"}, "n": 1}, {"kind": "budget", "calls": 3})
    async with make_world(bash("ls"), "fine<|im_end|>", bash("ls"), "never") as world:
        session = await world.open(options=held_to(*rules))
        assert (await world.chat(session.key, HI, tools=TOOLS)).status_code == 200
        await world.stop()
        await world.start()
        assert (await world.chat(session.key, [*HI, *HI], tools=TOOLS)).status_code == 200
        assert (await world.chat(session.key, [*HI, *HI, *HI], tools=TOOLS)).status_code == 200
        await world.stop()
        await world.start()
        refused = await world.chat(session.key, [*HI, *HI, *HI, *HI], tools=TOOLS)
        assert refused.status_code == 403
        assert "at most 1" in json.dumps(refused.json())
