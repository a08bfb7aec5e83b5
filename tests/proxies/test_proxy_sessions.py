"""What a session fixes: which agent a call belongs to, which calls are not the policy's own, budgets,
siblings, demands.
"""

import json
from dataclasses import dataclass
from typing import Any

import pytest

from harnessgym.harness import SideCallRule
from harnessgym.run_config.session import SessionOptions
from harnessgym.store import agents, events
from harnessgym.store.agents import AgentRow
from harnessgym.traces.trajectories import rows_of
from tests.proxies.conftest import MakeWorld, World

pytestmark = pytest.mark.anyio
CALL = '<tool_call>\n{"name": "get", "arguments": {"key": "a"}}\n</tool_call><|im_end|>'
TOOLS = [
    {"type": "function", "function": {"name": "get", "description": "Get.", "parameters": {"type": "object"}}}
]
JSON = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


@dataclass
class Speaker:
    """A client that sends headers."""

    world: World
    key: str

    async def say(
        self, messages: list[dict[str, Any]], headers: dict[str, str] | None = None, **fields: Any
    ) -> dict[str, Any]:
        response = await self.world.http.post(
            f"{self.world.proxy.url}/s/{self.key}/v1/chat/completions",
            json={"model": "m", "messages": messages, **fields},
            headers=headers or {},
        )
        assert response.status_code == 200, response.text
        message: dict[str, Any] = response.json()["choices"][0]["message"]
        return message


def agents_of(world: World, session_id: str) -> list[AgentRow]:
    return world.store.read(lambda conn: agents.of_sessions(conn, [session_id]))


@pytest.mark.parametrize(
    ("main", "child"),
    [
        (
            {"thread-id": "t1"},
            {"thread-id": "t2", "x-codex-parent-thread-id": "t1", "x-openai-subagent": "collab_spawn"},
        ),
        (
            {"x-claude-code-session-id": "s"},
            {"x-claude-code-session-id": "s", "x-claude-code-agent-id": "a9"},
        ),
        ({"x-session-id": "s1"}, {"x-session-id": "s2", "x-parent-session-id": "s1"}),
    ],
    ids=["codex", "claude code", "opencode"],
)
async def test_headers_name_agents_and_their_parents(
    make_world: MakeWorld, main: dict[str, str], child: dict[str, str]
) -> None:
    async with make_world("Yes.<|im_end|>") as world:
        session = await world.open()
        speaker = Speaker(world, session.key)
        await speaker.say([user("one")], main)
        await speaker.say([user("two")], child)
        await speaker.say([user("three")], main)
        first, second = agents_of(world, session.session_id)
        assert (first.parent_agent_id, second.parent_agent_id) == (None, first.id)
        assert (first.evidence, second.evidence) == ("header", "header")
        assert [call.agent_id for call in world.calls(session)] == [first.id, second.id, first.id]


async def test_agents_are_told_apart_by_what_they_say(make_world: MakeWorld) -> None:
    answers = [CALL, "From the child.<|im_end|>", "Done.<|im_end|>"]
    async with make_world(*answers) as world:
        session = await world.open()
        speaker = Speaker(world, session.key)
        opening = [system("You plan."), user("go")]
        asked = await speaker.say(opening, tools=TOOLS)
        await speaker.say([system("You work."), user("do it")], tools=TOOLS)
        result = {"role": "tool", "tool_call_id": asked["tool_calls"][0]["id"], "content": "done"}
        await speaker.say([*opening, asked, result], tools=TOOLS)
        planner, worker = agents_of(world, session.session_id)
        assert (planner.name, planner.evidence) == ("main", "content")
        assert worker.parent_agent_id == planner.id
        calls = world.calls(session)
        assert [call.agent_id for call in calls] == [planner.id, worker.id, planner.id]
        assert calls[2].parent_call_id == calls[0].id


SHELL = [
    {
        "type": "function",
        "function": {"name": "shell", "description": "Run.", "parameters": {"type": "object"}},
    }
]


@pytest.mark.parametrize("restarted", [False, True], ids=["same process", "after a restart"])
async def test_an_agent_that_is_handed_the_conversation_is_a_child(
    make_world: MakeWorld, restarted: bool
) -> None:
    """Two agents wait for tools, so that only the history can tell who handed over; then it is handed
    back.
    """
    async with make_world(
        CALL, CALL.replace('"a"', '"b"'), CALL.replace('"a"', '"c"'), "Done.<|im_end|>"
    ) as world:
        session = await world.open()
        speaker = Speaker(world, session.key)
        await speaker.say([system("You plan."), user("go")], tools=TOOLS)
        opening = [system("You triage. It is 10:31."), user("go")]
        asked = await speaker.say(opening, tools=TOOLS)
        handed = [
            asked,
            {"role": "tool", "tool_call_id": asked["tool_calls"][0]["id"], "content": "transferred"},
        ]
        if restarted:
            await world.stop()
            await world.start()
        given = await speaker.say([system("You code."), opening[1], *handed], tools=SHELL)
        back = [
            given,
            {"role": "tool", "tool_call_id": given["tool_calls"][0]["id"], "content": "transferred back"},
        ]
        later = system("You triage. It is 10:35.")
        await speaker.say([later, opening[1], *handed, *back], tools=TOOLS)
        planner, triage, coder = agents_of(world, session.session_id)
        assert (coder.parent_agent_id, coder.evidence) == (triage.id, "content")
        assert triage.parent_agent_id == planner.id
        calls = world.calls(session)
        assert [call.agent_id for call in calls] == [planner.id, triage.id, coder.id, triage.id]
        assert [world.break_of(call) for call in calls] == [None, "sub_agent", "handoff", "handoff"]


async def test_agents_outlive_the_proxy(make_world: MakeWorld) -> None:
    async with make_world("Yes.<|im_end|>") as world:
        session = await world.open()
        await Speaker(world, session.key).say([system("You plan."), user("one")])
        await world.stop()
        await world.start()
        await Speaker(world, session.key).say([system("You plan."), user("something else")])
        (agent,) = agents_of(world, session.session_id)
        assert [call.agent_id for call in world.calls(session)] == [agent.id, agent.id]


async def test_an_agent_that_tells_the_time_is_one_agent(make_world: MakeWorld) -> None:
    async with make_world("Yes.<|im_end|>") as world:
        session = await world.open()
        speaker = Speaker(world, session.key)
        for now, tools in (("2025-03-03 23:59", [*TOOLS, *SHELL]), ("2025-03-04 00:01", [*SHELL, *TOOLS])):
            await speaker.say([system(f"You plan. It is {now}."), user(f"one, {now}")], tools=tools)
        await speaker.say([system("You write. It is 2025-03-04 00:02."), user("two")], tools=[*TOOLS, *SHELL])
        first, second = agents_of(world, session.session_id)
        assert [call.agent_id for call in world.calls(session)] == [first.id, first.id, second.id]


async def test_side_calls_are_known_by_their_traffic_and_by_no_less(make_world: MakeWorld) -> None:
    """The Claude Agent SDK runs Claude Code in programs of any name; any program may want one token."""
    billed = "x-anthropic-billing-header: cc_version=2.1; cc_entrypoint=sdk-py;\n"
    naming = system(f"{billed}You are naming a coding session. Answer with a title.")
    wanted = {"type": "json_schema", "json_schema": {"name": "title", "schema": {"type": "object"}}}
    async with make_world("Yes.<|im_end|>") as world:
        session = await world.open(options=SessionOptions(constraints="prompt"))
        speaker = Speaker(world, session.key)
        await speaker.say([naming, user("fix it")], response_format=wanted)
        await speaker.say([system(f"{billed}You are an agent."), user("fix it")], tools=TOOLS)
        await speaker.say([user("hello")], max_tokens=1)
        await speaker.say([user("hello")], response_format=wanted)
        calls = world.calls(session)
        assert [call.kind for call in calls] == ["side", "policy", "policy", "policy"]
        assert next(iter(agents_of(world, session.session_id))).id == calls[1].agent_id


async def test_side_calls_are_tagged_and_not_trained(make_world: MakeWorld) -> None:
    rules = (
        SideCallRule(kind="side", name="title", no_tools=True, system_pattern="(?i)short title"),
        SideCallRule(kind="compaction", name="summary", user_pattern="^Summarise"),
    )
    async with make_world("Yes.<|im_end|>") as world:
        session = await world.open(options=SessionOptions(side_calls=rules))
        speaker = Speaker(world, session.key)
        await speaker.say([system("Write a short title."), user("hello")])
        await speaker.say([user("quota")], max_tokens=1)
        await speaker.say([user("hello")], tools=TOOLS)
        await speaker.say([user("Summarise the conversation.")], tools=TOOLS)
        title, probe, policy, summary = world.calls(session)
        assert [call.kind for call in (title, probe, policy, summary)] == [
            "side",
            "side",
            "policy",
            "compaction",
        ]
        assert (title.agent_id, probe.agent_id) == (None, None)
        await world.control.seal(session.session_id)
        trajectory = world.store.read(lambda conn: rows_of(conn, world.rollout_id, group_id="g"))
        assert {item.call_id: item.reason for item in trajectory.exclusions} == {
            title.id: "side_call",
            probe.id: "side_call",
        }
        assert trajectory.trained == policy.completion_len + summary.completion_len


async def test_siblings_are_calls_of_their_own_behind_one_prompt(make_world: MakeWorld) -> None:
    async with make_world("One.<|im_end|>", "Two.<|im_end|>", "Three.<|im_end|>") as world:
        session = await world.open(sampling={"seed": 5})
        response = await world.chat(session.key, [user("hi")], n=3)
        assert response.status_code == 200
        texts = [choice["message"]["content"] for choice in response.json()["choices"]]
        assert sorted(texts) == ["One.", "Three.", "Two."]
        assert [choice["index"] for choice in response.json()["choices"]] == [0, 1, 2]
        calls = world.calls(session)
        assert len({call.prompt_segment for call in calls}) == 1
        assert len({asked.sampling.seed for asked in world.upstreams["w0"].asked}) == 3  # type: ignore[attr-defined]
        total = sum(call.completion_len or 0 for call in calls)
        assert response.json()["usage"]["completion_tokens"] == total
        second = [user("hi"), {"role": "assistant", "content": texts[1]}, user("more")]
        await world.chat(session.key, second)
        parent = world.calls(session)[3].parent_call_id
        assert parent in {call.id for call in calls}
        await world.control.seal(session.session_id)
        trajectory = world.store.read(lambda conn: rows_of(conn, world.rollout_id, group_id="g"))
        assert len(trajectory.rows) == 3
        assert trajectory.trained == trajectory.sampled


async def test_siblings_stream_interleaved_and_a_retry_gets_the_same(make_world: MakeWorld) -> None:
    async with make_world("One.<|im_end|>", "Two.<|im_end|>") as world:
        session = await world.open()

        async def ask() -> dict[int, str]:
            said: dict[int, str] = {}
            ends = []
            url = f"{world.proxy.url}/s/{session.key}/v1/chat/completions"
            body = {"model": "m", "messages": [user("hi")], "n": 2, "stream": True}
            response = await world.http.post(url, json=body, headers={"x-stainless-retry-count": "1"})
            for line in response.text.split("\n"):
                if line.startswith("data: {"):
                    choice = json.loads(line[6:])["choices"][0]
                    said[choice["index"]] = said.get(choice["index"], "") + (
                        choice["delta"].get("content") or ""
                    )
                    ends += [choice["index"]] if choice["finish_reason"] else []
            assert sorted(ends) == [0, 1]
            return said

        first = await ask()
        assert set(first.values()) == {"One.", "Two."}
        assert await ask() == first
        assert len(world.calls(session)) == 2


async def test_budgets_end_a_session_and_leave_an_event(make_world: MakeWorld) -> None:
    async with make_world("Yes.<|im_end|>") as world:
        for limits, name in (({"turns": 1}, "turns"), ({"tokens": 1}, "tokens"), ({"wall_s": 0.0}, "wall_s")):
            session = await world.open(limits=limits)
            answers = [await world.chat(session.key, [user(f"{name} {turn}")]) for turn in range(2)]
            assert answers[-1].status_code == 403
            assert answers[-1].headers["x-should-retry"] == "false"
            await world.control.seal(session.session_id)
            found = world.store.read(
                lambda conn: events.of_rollout(conn, world.rollout_id, "refused_request")
            )
            assert found[-1].attributes["limit"] == name
            assert sum(call.completion_len or 0 for call in world.calls(session)) <= limits.get("tokens", 99)


@pytest.mark.parametrize("fields", [{"response_format": JSON}, {"tool_choice": "required", "tools": TOOLS}])
async def test_demands_are_refused_or_put_to_the_policy(
    make_world: MakeWorld, fields: dict[str, Any]
) -> None:
    async with make_world("Yes.<|im_end|>") as world:
        strict = await world.open()
        refused = await world.chat(strict.key, [user("hi")], **fields)
        assert refused.status_code == 400
        assert "does not support" in refused.json()["error"]["message"]
        willing = await world.open(options=SessionOptions(constraints="prompt"))
        assert (await world.chat(willing.key, [user("hi")], **fields)).status_code == 200
        prompt = world.language.renderer.tokenizer.decode(world.upstreams["w0"].asked[-1].prompt)  # type: ignore[attr-defined]
        assert "Answer with JSON" in prompt or "Call a tool." in prompt


async def test_images_are_refused_by_a_policy_that_cannot_see(make_world: MakeWorld) -> None:
    async with make_world("Yes.<|im_end|>") as world:
        session = await world.open()
        parts = [
            {"type": "text", "text": "what?"},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}},
        ]
        shown = {"role": "user", "content": parts}
        for begin in ([], [user("hi"), {"role": "assistant", "content": "Yes."}]):
            refused = await world.chat(session.key, [*begin, shown])
            assert refused.status_code == 400
            assert "image" in refused.json()["error"]["message"]
            assert len(world.calls(session)) == len(begin) // 2
            assert (await world.chat(session.key, [user("hi")])).status_code == 200
        edited = [shown, {"role": "assistant", "content": "Yes."}, user("and?")]
        assert (await world.chat(session.key, edited)).status_code == 400


async def test_tokens_are_counted_without_a_call(make_world: MakeWorld) -> None:
    async with make_world("Yes.<|im_end|>") as world:
        session = await world.open()
        url = f"{world.proxy.url}/s/{session.key}/v1/messages"
        body = {"model": "m", "messages": [user("hello there")]}
        counted = await world.http.post(f"{url}/count_tokens", json=body)
        assert counted.status_code == 200
        assert world.calls(session) == []
        answered = await world.http.post(url, json={**body, "max_tokens": 5})
        assert answered.json()["usage"]["input_tokens"] == counted.json()["input_tokens"]


async def test_preflights(make_world: MakeWorld) -> None:
    async with make_world() as world:
        session = await world.open()
        base = f"{world.proxy.url}/s/{session.key}"
        assert (await world.http.head(f"{base}/")).status_code == 200
        upgrade = {
            "connection": "upgrade",
            "upgrade": "websocket",
            "sec-websocket-key": "eA==",
            "sec-websocket-version": "13",
        }
        assert (await world.http.get(f"{base}/v1/responses", headers=upgrade)).status_code == 426


async def test_a_refused_request_is_an_event(make_world: MakeWorld) -> None:
    async with make_world() as world:
        session = await world.open()
        response = await world.http.post(
            f"{world.proxy.url}/s/{session.key}/v1/chat/completions", content=b"{\xff"
        )
        assert response.status_code == 400
        await world.control.seal(session.session_id)
        (event,) = world.store.read(lambda conn: events.of_rollout(conn, world.rollout_id, "refused_request"))
        assert event.attributes["problem"] == "malformed"
        assert event.attributes["path"] == "/v1/chat/completions"


async def test_a_conversation_goes_on_by_the_id_of_its_last_answer(make_world: MakeWorld) -> None:
    async with make_world("One.<|im_end|>", "Two.<|im_end|>", "Three.<|im_end|>", "Four.<|im_end|>") as world:
        session = await world.open()

        async def ask(text: str, previous: str | None = None) -> dict[str, Any]:
            url = f"{world.proxy.url}/s/{session.key}/v1/responses"
            body = {
                "model": "m",
                "input": text,
                "instructions": "Be brief.",
                "previous_response_id": previous,
            }
            response = await world.http.post(url, json=body)
            assert response.status_code == 200, response.text
            answer: dict[str, Any] = response.json()
            return answer

        first = await ask("a")
        second = await ask("b", first["id"])
        await world.stop()
        await world.start()
        third = await ask("c", second["id"])
        await ask("d", third["id"])
        calls = world.calls(session)
        assert [call.parent_call_id for call in calls] == [None, *(call.id for call in calls[:-1])]
        url = f"{world.proxy.url}/s/{session.key}/v1/responses"
        refused = await world.http.post(
            url, json={"model": "m", "input": "x", "previous_response_id": "resp_nothing"}
        )
        assert refused.status_code == 400
        assert "not found" in refused.json()["error"]["message"]
