"""OTLP intake of a real proxy: exporters, keys, bounds, restarts, and what is in the store afterwards."""

import asyncio
import gzip
import json
from collections.abc import Sequence
from typing import Any

import httpx
import pytest
from openai import OpenAI
from openinference.instrumentation.openai import OpenAIInstrumentor
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.trace import Link, Status, StatusCode

from harnessgym.store import edges, events
from harnessgym.store.events import EventRow
from proxies.otlp import receiver
from tests.proxies.conftest import MakeWorld, World
from tests.proxies.otlp_talk import export, pairs, span

pytestmark = pytest.mark.anyio
CALL = '<tool_call>\n{"name": "get", "arguments": {"key": "a"}}\n</tool_call><|im_end|>'
TOOLS: Any = [
    {"type": "function", "function": {"name": "get", "parameters": {"type": "object", "properties": {}}}}
]
HI: Any = [{"role": "user", "content": "What is a?"}]


async def post(world: World, key: str, body: Any, **headers: str) -> httpx.Response:
    """Export in JSON, the key as bearer."""
    sent = {"authorization": f"Bearer {key}", "content-type": "application/json", **headers}
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return await world.http.post(f"{world.proxy.url}/v1/traces", content=data, headers=sent)


def stored(world: World, source: str = "otlp") -> list[EventRow]:
    """Events of the rollout from one source, without the spans themselves."""
    found = world.store.read(lambda conn: events.of_rollout(conn, world.rollout_id))
    return [event for event in found if event.source == source and event.kind != receiver.KIND]


def spans(world: World) -> Sequence[EventRow]:
    return world.store.read(lambda conn: events.of_rollout(conn, world.rollout_id, receiver.KIND))


def drawn(world: World) -> set[tuple[str, str, str]]:
    """Edges of the rollout as (kind, source's kind, target's kind)."""
    kinds = {
        event.id: event.kind
        for event in world.store.read(lambda conn: events.of_rollout(conn, world.rollout_id))
    }
    found = world.store.read(lambda conn: edges.of_rollout(conn, world.rollout_id))
    return {(edge.kind, kinds[edge.source_event_id], kinds[edge.target_event_id]) for edge in found}


def human(**fields: Any) -> dict[str, Any]:
    return span("human_intervention", **fields)


async def test_the_key_comes_in_a_header_or_in_the_path(make_world: MakeWorld) -> None:
    async with make_world("x<|im_end|>") as world:
        key = (await world.open()).key
        url = world.proxy.url
        for path, headers in (
            ("/v1/traces", {"authorization": f"Bearer {key}"}),
            ("/v1/traces", {"authorization": f"Bearer%20{key}"}),
            ("/v1/traces", {"x-api-key": key}),
            (f"/s/{key}/v1/traces", {}),
        ):
            answer = await world.http.post(f"{url}{path}", json=export(span()), headers=headers)
            assert (answer.status_code, answer.json(), answer.headers["content-type"]) == (
                200,
                {},
                "application/json",
            )
        assert len(spans(world)) == 4
        assert (await post(world, "nobody", export(span()))).status_code == 401
        assert (await world.http.post(f"{url}/v1/traces", json=export(span()))).status_code == 401
        assert (await world.http.get(f"{url}/s/{key}/v1/traces")).status_code == 404
        assert len(spans(world)) == 4


async def test_a_sealed_session_takes_no_more_spans(make_world: MakeWorld) -> None:
    async with make_world("x<|im_end|>") as world:
        session = await world.open()
        await world.control.seal(session.session_id)
        answer = await post(world, session.key, export(human()))
        assert (answer.status_code, answer.json()["code"]) == (403, 7)
        assert not spans(world)


@pytest.mark.parametrize("compression", [Compression.NoCompression, Compression.Gzip])
async def test_the_sdks_exporter_is_understood(make_world: MakeWorld, compression: Compression) -> None:
    async with make_world(CALL, "It is 5.<|im_end|>") as world:
        session = await world.open()
        headers = {"authorization": f"Bearer {session.key}"}
        exporter = OTLPSpanExporter(f"{world.proxy.url}/v1/traces", headers=headers, compression=compression)
        await asyncio.to_thread(instrumented, exporter, world.proxy.url or "", session.key)
        await world.control.seal(session.session_id)
        own = stored(world)
        assert sorted(event.kind for event in own) == ["human_intervention", "message", "safety_event"]
        (refused,) = [event for event in own if event.kind == "safety_event"]
        assert (refused.attributes["reason"], refused.attributes["tool"]) == ("denied by the guard", "get")
        assert {event.agent_id for event in own} == {stored(world, "proxy")[0].agent_id}
        assert {
            ("safety_flow", "safety_event", "tool_call"),
            ("causal", "human_intervention", "llm_call"),
            ("causal", "message", "human_intervention"),
        } <= drawn(world)


def instrumented(exporter: OTLPSpanExporter, url: str, key: str) -> None:
    """A harness that tells of itself with the OpenTelemetry SDK."""
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("test")
    with (
        OpenAI(base_url=f"{url}/v1", api_key=key) as client,
        tracer.start_as_current_span("invoke_agent main") as agent,
    ):
        agent.set_attributes({"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "main"})
        message = client.chat.completions.create(model="m", messages=HI, tools=TOOLS).choices[0].message
        assert message.tool_calls
        call = message.tool_calls[0]
        with tracer.start_as_current_span("execute_tool get") as tool:
            tool.set_attributes({"gen_ai.operation.name": "execute_tool", "gen_ai.tool.call.id": call.id})
            tool.set_attribute("gen_ai.tool.name", "get")
            tool.set_status(Status(StatusCode.ERROR, "denied by the guard"))
        with tracer.start_as_current_span("message", attributes={"text": "May I?"}) as asked:
            pass
        with tracer.start_as_current_span("human approval", links=[Link(asked.get_span_context())]):
            pass
        again = [
            *HI,
            message.model_dump(exclude_none=True),
            {"role": "tool", "tool_call_id": call.id, "content": "no"},
        ]
        client.chat.completions.create(model="m", messages=again, tools=TOOLS)
    provider.shutdown()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_real_instrumentation_joins_on_the_call(make_world: MakeWorld, stream: bool) -> None:
    async with make_world(CALL, "It is 5.<|im_end|>") as world:
        session = await world.open()
        exporter = OTLPSpanExporter(f"{world.proxy.url}/s/{session.key}/v1/traces")
        await asyncio.to_thread(openinference, exporter, world.proxy.url or "", session.key, stream)
        await world.control.seal(session.session_id)
        seen = [row.attributes for row in spans(world)]
        assert [row["deed"] for row in seen] == ["agent", "llm", "llm"]
        assert [row.get("call_id") for row in seen[1:]] == [call.id for call in world.calls(session)]
        assert not stored(world)


def openinference(exporter: OTLPSpanExporter, url: str, key: str, stream: bool) -> None:
    """A harness whose SDK is instrumented from outside."""
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    instrumentor = OpenAIInstrumentor()
    instrumentor.instrument(tracer_provider=provider)
    try:
        attributes = {"openinference.span.kind": "AGENT", "agent.name": "main"}
        with (
            OpenAI(base_url=f"{url}/v1", api_key=key) as client,
            provider.get_tracer("test").start_as_current_span("agent", attributes=attributes),
        ):
            for messages in (HI, [*HI, {"role": "user", "content": "Well?"}]):
                answer: Any = client.chat.completions.create(
                    model="m", messages=messages, tools=TOOLS, stream=stream
                )
                assert not stream or list(answer)
    finally:
        instrumentor.uninstrument()
        provider.shutdown()


async def test_garbage_is_refused_and_half_of_it_in_part(make_world: MakeWorld) -> None:
    async with make_world("x<|im_end|>") as world:
        key = (await world.open()).key
        for body, headers, status in (
            (b"nonsense", {}, 400),
            (b"nonsense", {"content-type": "application/x-protobuf"}, 400),
            (b"nonsense", {"content-encoding": "gzip"}, 400),
            (b"{}", {"content-type": "text/plain"}, 415),
            (b"{}", {"content-encoding": "zstd"}, 415),
            (b"x" * (17 << 20), {}, 413),
            (gzip.compress(b" " * (17 << 20)), {"content-encoding": "gzip"}, 413),
        ):
            answer = await post(world, key, body, **headers)
            assert answer.status_code == status, (body[:20], headers)
        answer = await post(world, key, export({**span(), "spanId": "?"}, span()))
        assert answer.status_code == 200
        assert answer.json()["partialSuccess"]["rejectedSpans"] == "1"
        assert len(spans(world)) == 1


async def test_a_rollout_keeps_so_many_spans_and_no_more(make_world: MakeWorld) -> None:
    async with make_world("x<|im_end|>") as world:
        key = (await world.open()).key
        many = [span() for _ in range(receiver.MAX_SPANS - 1)]
        for start in range(0, len(many), 5_000):
            assert (await post(world, key, export(*many[start : start + 5_000]))).json() == {}
        answer = await post(world, key, export(many[0], span(), span(), span()))
        assert answer.json()["partialSuccess"]["rejectedSpans"] == "2"
        assert len(spans(world)) == receiver.MAX_SPANS


async def test_spans_sent_twice_are_there_once_also_after_a_restart(make_world: MakeWorld) -> None:
    async with make_world("x<|im_end|>") as world:
        session = await world.open()
        one, other = human(), human()
        await asyncio.gather(*(post(world, session.key, export(one, one)) for _ in range(4)))
        await world.stop()
        await world.start()
        assert (await post(world, session.key, export(one, other))).json() == {}
        assert len(spans(world)) == 2
        await world.control.seal(session.session_id)
        await world.control.seal(session.session_id)
        assert [event.kind for event in stored(world)] == ["human_intervention"] * 2


async def test_spans_may_come_before_their_call_and_in_any_order(make_world: MakeWorld) -> None:
    async with make_world(CALL, "It is 5.<|im_end|>", "Fine.<|im_end|>") as world:
        session = await world.open()
        first = (await world.chat(session.key, HI, tools=TOOLS)).json()
        used = first["choices"][0]["message"]["tool_calls"][0]["id"]
        root = span(
            "invoke_agent lead",
            for_s=60.0,
            gen_ai__operation__name="invoke_agent",
            gen_ai__agent__name="lead",
        )
        tool = span(
            "get",
            root,
            gen_ai__operation__name="execute_tool",
            gen_ai__tool__name="get",
            gen_ai__tool__call__id=used,
        )
        sub = span(
            "invoke_agent sub",
            tool,
            for_s=0.5,
            gen_ai__operation__name="invoke_agent",
            gen_ai__agent__name="sub",
        )
        said = span("x", sub, events=[{"name": "message", "attributes": pairs({"to": "lead", "text": "hm"})}])
        for late in (said, sub, tool):  # children end first, and their parents may never arrive
            assert (await post(world, session.key, export(late))).json() == {}
        back = {"role": "tool", "tool_call_id": used, "content": "5"}
        await world.chat(session.key, [*HI, first["choices"][0]["message"], back], tools=TOOLS)
        await post(world, session.key, export(root))
        assert not stored(world)
        await world.control.seal(session.session_id)
        assert [event.kind for event in stored(world)] == ["spawn", "message", "return"]
        assert ("causal", "tool_call", "spawn") in drawn(world)
        assert [event.kind for event in stored(world, "proxy")].count("tool_call") == 1


async def test_it_is_woven_when_the_last_session_of_the_rollout_is_sealed(make_world: MakeWorld) -> None:
    async with make_world("x<|im_end|>") as world:
        one, other = await world.open(), await world.open()
        await post(world, one.key, export(human()))
        await world.control.seal(one.session_id)
        assert not stored(world)
        await world.control.seal(other.session_id)
        assert [event.kind for event in stored(world)] == ["human_intervention"]


async def test_an_answer_in_protobuf_to_protobuf(make_world: MakeWorld) -> None:
    async with make_world("x<|im_end|>") as world:
        key = (await world.open()).key
        answer = await post(world, key, b"", **{"content-type": "application/x-protobuf"})
        assert (answer.status_code, answer.headers["content-type"]) == (200, "application/x-protobuf")
        assert not ExportTraceServiceResponse.FromString(answer.content).HasField("partial_success")
