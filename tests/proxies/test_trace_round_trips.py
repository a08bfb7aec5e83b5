"""What a real proxy recorded, exported and imported again: the export of the import is the same."""

import asyncio
import importlib
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert

from harnessgym.harness import SideCallRule
from harnessgym.run_config.session import SessionOptions
from harnessgym.store import calls, new_id, sessions
from harnessgym.store import events as event_rows
from harnessgym.store.facts import agents_of, calls_of
from harnessgym.store.tables import events, rewards
from harnessgym.store.trace_store import TraceStore
from harnessgym.traces.atif.schema import AtifTrajectory
from harnessgym.traces.completions import Languages
from harnessgym.traces.export import TracedRollout, export
from harnessgym.traces.exports.otel import request
from harnessgym.traces.exports.trl import samples
from harnessgym.traces.import_ import import_traces
from harnessgym.traces.trajectories import rows_of
from harnessgym.traces.verification.verify import verify
from tests.proxies.conftest import POLICY, MakeWorld, World

pytestmark = pytest.mark.anyio
TOOL: dict[str, Any] = {"type": "object", "properties": {"name": {"type": "string"}}}
TOOLS = [{"type": "function", "function": {"name": "find", "description": "Finds.", "parameters": TOOL}}]
CALL = 'Looking.\n<tool_call>\n{"name":  "find", "arguments": {"name": "red lamp"}}\n</tool_call><|im_end|>'
RULE = SideCallRule(name="title", kind="side", system_pattern="title")
LANGUAGES = Languages(POLICY)


def system(text: str) -> dict[str, str]:
    return {"role": "system", "content": text}


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


async def talk(world: World) -> None:
    """A planner with a tool call, a worker that it spawned, a title, a branch, a second session."""
    session, other = await world.open(options=SessionOptions(side_calls=(RULE,))), await world.open()
    begin = [system("Plan."), user("héllo 🙂")]
    first = (await world.chat(session.key, begin, tools=TOOLS)).json()["choices"][0]["message"]
    called = first["tool_calls"][0]["id"]
    await world.chat(session.key, [system("Write a title."), user("hi")])
    await world.chat(session.key, [system("Work."), user("do a part")])
    result = {"role": "tool", "content": "47", "tool_call_id": called}
    await world.chat(session.key, [*begin, first, result], tools=TOOLS)
    await world.chat(
        session.key, [*begin, {"role": "assistant", "content": "made up"}, user("again")], tools=TOOLS
    )
    await world.chat(other.key, [user("elsewhere")])
    await asyncio.sleep(0.2)
    world.store.write(lambda conn: annotate(conn, world.rollout_id, called))


def annotate(conn: Any, rollout_id: str, called: str) -> None:
    """The event that spawned the worker, and rewards of several units."""
    planner, worker = agents_of(conn, rollout_id)[:2]
    spawn = {
        "id": new_id(),
        "rollout_id": rollout_id,
        "agent_id": planner.id,
        "target_agent_id": worker.id,
        "t": 5.0,
    }
    told = {
        "kind": "spawn",
        "attributes": {"tool": "find", "tool_call_id": called},
        "evidence": "guess",
        "confidence": 0.5,
    }
    conn.execute(insert(events).values({**spawn, **told}))
    given = [("rollout", rollout_id, "reward", 0.5), ("agent", worker.id, "process.care", -1.0)]
    for unit, target, channel, value in given:
        row = {"id": new_id(), "rollout_id": rollout_id, "unit": unit, "target": target, "channel": channel}
        conn.execute(insert(rewards).values({**row, "value": value, "source": "grader"}))


ANSWERS = (
    CALL,
    "A title<|im_end|>",
    "Done.<|im_end|>",
    "It is 47.<|im_end|>",
    "Sorry.<|im_end|>",
    "Far away.<|im_end|>",
)


@asynccontextmanager
async def talked(make_world: MakeWorld) -> AsyncIterator[World]:
    async with make_world(*ANSWERS) as world:
        await talk(world)
        yield world


def written(
    store: TraceStore, rollout_id: str, name: str, out: Path, languages: Languages | None = None
) -> dict[str, Any]:
    export(store, [rollout_id], name, out, languages)
    found: dict[str, Any] = json.loads(out.read_text())
    return found


@pytest.mark.parametrize("name", ["atif", "mas"])
async def test_an_import_exports_the_same(make_world: MakeWorld, tmp_path: Path, name: str) -> None:
    if name == "mas" and "export" not in os.environ.get("HARNESSGYM_REQUIRE", ""):
        pytest.importorskip("jsonschema")
    async with talked(make_world) as world:
        before = written(world.store, world.rollout_id, name, tmp_path / "one.json", LANGUAGES)
    with TraceStore.create(f"sqlite:///{tmp_path}/other.db") as store:
        made = import_traces(store, tmp_path / "one.json", name)
        assert made.rollouts == (world.rollout_id,)
        assert made.left_out == {}
        assert written(store, made.rollouts[0], name, tmp_path / "two.json") == before
        assert verify(store, made.run_id).findings == ()
        again = import_traces(store, tmp_path / "one.json", name)
        assert again.rollouts != made.rollouts
        assert verify(store, again.run_id).findings == ()


async def failing_tool(world: World) -> None:
    """A conversation in Anthropic's protocol: a tool fails, the policy goes on, and the user too."""
    session = await world.open()
    tools = [{"name": "find", "description": "Finds.", "input_schema": TOOL}]
    messages: list[dict[str, Any]] = [user("Find the lamp.")]
    for turn in range(3):
        body = {"model": "m", "max_tokens": 64, "tools": tools, "messages": messages}
        response = await world.http.post(f"{world.base(session)}/v1/messages", json=body)
        assert response.status_code == 200, response.text
        content = response.json()["content"]
        messages.append({"role": "assistant", "content": content})
        if turn == 0:
            called = next(block["id"] for block in content if block["type"] == "tool_use")
            failed = {
                "type": "tool_result",
                "tool_use_id": called,
                "content": "there is no lamp",
                "is_error": True,
            }
            messages.append({"role": "user", "content": [failed]})
            await world.stop()  # what follows is continued from the store
            await world.start()
        else:
            messages.append(user("Go on."))


async def test_a_failed_tool_is_read_by_the_policy_and_survives_a_round_trip(
    make_world: MakeWorld, tmp_path: Path
) -> None:
    async with make_world(CALL, "I see.<|im_end|>", "Bye.<|im_end|>") as world:
        await failing_tool(world)
        (session_id,) = world.store.read(lambda conn: sessions.of_rollout(conn, world.rollout_id))
        first, second, third = world.store.read(lambda conn: calls.of_sessions(conn, [session_id]))
        assert (second.parent_call_id, third.parent_call_id) == (first.id, second.id)
        prompt = world.language.renderer.tokenizer.decode(world.scripted("w0").asked[1].prompt)  # type: ignore[attr-defined]
        assert "Error: there is no lamp" in prompt
        (result,) = world.store.read(
            lambda conn: event_rows.of_rollout(conn, world.rollout_id, "tool_result")
        )
        assert result.attributes["is_error"] is True
        sft = written(world.store, world.rollout_id, "sft", tmp_path / "sft.json", LANGUAGES)
        assert [message["content"] for message in sft["messages"] if message["role"] == "tool"] == [
            "Error: there is no lamp"
        ]
        before = written(world.store, world.rollout_id, "atif", tmp_path / "one.json", LANGUAGES)
        spans = request(TracedRollout(world.store, world.rollout_id, LANGUAGES))["resourceSpans"][0][
            "scopeSpans"
        ][0]["spans"]
        assert [span["status"] for span in spans if span["name"] == "execute_tool find"] == [
            {"code": 2, "message": "The tool failed."}
        ]
    with TraceStore.create(f"sqlite:///{tmp_path}/other.db") as store:
        made = import_traces(store, tmp_path / "one.json", "atif")
        assert made.left_out == {}
        imported = TracedRollout(store, made.rollouts[0], LANGUAGES)
        heard = [
            message
            for exchange in imported.transcript.exchanges
            for message in exchange.new
            if message.role == "tool"
        ]
        assert [(message.content, message.is_error) for message in heard] == [("there is no lamp", True)]
        assert written(store, made.rollouts[0], "atif", tmp_path / "two.json") == before


async def test_imported_tokens_train_like_the_recorded_ones(make_world: MakeWorld, tmp_path: Path) -> None:
    async with talked(make_world) as world:
        written(world.store, world.rollout_id, "atif", tmp_path / "one.json", LANGUAGES)
        before = world.store.read(lambda conn: rows_of(conn, world.rollout_id, group_id="g"))
    with TraceStore.create(f"sqlite:///{tmp_path}/other.db") as store:
        (rollout_id,) = import_traces(store, tmp_path / "one.json", "atif").rollouts
        after = store.read(lambda conn: rows_of(conn, rollout_id, group_id="g"))
    assert (after.sampled, after.trained, after.exclusions) == (
        before.sampled,
        before.trained,
        before.exclusions,
    )
    assert before.trained > 0
    for one, other in zip(before.rows, after.rows, strict=True):
        assert one.turns == other.turns
        for name in ("ids", "mask", "logprobs", "versions"):
            assert getattr(one, name).tolist() == getattr(other, name).tolist()


async def test_atif_has_the_tokens_and_the_sub_agent(make_world: MakeWorld, tmp_path: Path) -> None:
    async with talked(make_world) as world:
        found = AtifTrajectory.model_validate(
            written(world.store, world.rollout_id, "atif", tmp_path / "t.json", LANGUAGES)
        )
        recorded = {call.id: call for call in world.store.read(lambda conn: calls_of(conn, world.rollout_id))}
    (first,) = [step for step in found.steps if step.tool_calls]
    assert first.metrics is not None
    call = recorded[(first.extra or {})["call"]["id"]]
    assert len(first.metrics.prompt_token_ids or ()) == call.prompt_len == first.metrics.prompt_tokens
    assert (
        len(first.metrics.completion_token_ids or ())
        == len(first.metrics.logprobs or ())
        == call.completion_len
    )
    assert first.message == "Looking."
    assert first.observation is not None
    (result,) = first.observation.results
    subs = {sub.trajectory_id: sub for sub in found.subagent_trajectories or ()}
    (ref,) = result.subagent_trajectory_ref or ()
    assert [step.message for step in subs[ref.trajectory_id].steps] == ["Work.", "do a part", "Done."]
    assert "side calls" in {sub.agent.name for sub in subs.values()}


async def test_sft_has_a_line_per_branch_and_trains_each_answer_once(
    make_world: MakeWorld, tmp_path: Path
) -> None:
    async with talked(make_world) as world:
        out = tmp_path / "sft.jsonl"
        done = export(world.store, [world.rollout_id], "sft", out, LANGUAGES)
        lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert done.records == len(lines)
    learnt = [
        message["content"]
        for line in lines
        for message, loss in zip(line["messages"], line["loss_mask"], strict=True)
        if loss
    ]
    assert sorted(learnt) == sorted(["Looking.", "Done.", "It is 47.", "Sorry.", "Far away."])
    (whole,) = [line for line in lines if line["messages"][-1]["content"] == "It is 47."]
    assert [message["role"] for message in whole["messages"]] == [
        "system",
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    assert whole["tools"] == TOOLS
    assert json.loads(whole["messages"][2]["tool_calls"][0]["function"]["arguments"]) == {"name": "red lamp"}


async def test_otel_spans_hang_together(make_world: MakeWorld) -> None:
    async with talked(make_world) as world:
        body = request(TracedRollout(world.store, world.rollout_id, LANGUAGES))
    spans = body["resourceSpans"][0]["scopeSpans"][0]["spans"]
    ids = {span["spanId"] for span in spans}
    assert len(ids) == len(spans)
    assert [span["name"] for span in spans if "parentSpanId" not in span] == ["invoke_agent command"]
    assert all(span["parentSpanId"] in ids for span in spans if "parentSpanId" in span)
    assert all(int(span["startTimeUnixNano"]) <= int(span["endTimeUnixNano"]) for span in spans)
    chats = [span for span in spans if span["name"].startswith("chat ")]
    assert len(chats) == len(ANSWERS)
    values = {item["key"]: item["value"] for item in chats[0]["attributes"]}
    said = json.loads(values["gen_ai.output.messages"]["stringValue"])
    assert said[0]["parts"][0] == {"type": "text", "content": "Looking."}
    assert values["gen_ai.operation.name"] == {"stringValue": "chat"}


async def test_trl_samples_tell_the_conversation(make_world: MakeWorld) -> None:
    async with talked(make_world) as world:
        found = list(samples(TracedRollout(world.store, world.rollout_id, LANGUAGES)))
        blind = list(samples(TracedRollout(world.store, world.rollout_id, Languages())))
    (sample,) = [item for item in found if item["completion"][-1]["content"] == "It is 47."]
    assert [message["role"] for message in sample["prompt"]] == ["system", "user"]
    assert sample["metrics"] == {"reward": 0.5}
    assert len(blind) == len(found)
    assert all(
        item["input_ids"].tolist() == other["input_ids"].tolist()
        for item, other in zip(found, blind, strict=True)
    )


async def test_otel_is_what_the_protocol_and_the_conventions_say(make_world: MakeWorld) -> None:
    if "otel" not in os.environ.get("HARNESSGYM_REQUIRE", ""):
        pytest.importorskip(
            "opentelemetry.proto.collector.trace.v1.trace_service_pb2", reason="needs opentelemetry-proto"
        )
        pytest.importorskip("opentelemetry.semconv", reason="needs opentelemetry-semantic-conventions")
    service = importlib.import_module("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
    conventions = importlib.import_module("opentelemetry.semconv._incubating.attributes.gen_ai_attributes")
    json_format = importlib.import_module("google.protobuf.json_format")
    async with talked(make_world) as world:
        body = request(TracedRollout(world.store, world.rollout_id, LANGUAGES))
    read = json_format.Parse(
        json.dumps(body), service.ExportTraceServiceRequest(), ignore_unknown_fields=False
    )
    spans = read.resource_spans[0].scope_spans[0].spans
    assert len(spans) == len(body["resourceSpans"][0]["scopeSpans"][0]["spans"])
    known = {value for value in vars(conventions).values() if isinstance(value, str)}
    used = {item.key for span in spans for item in span.attributes if item.key.startswith("gen_ai.")}
    assert used <= known
