"""Outside models through litellm, against a loopback OpenAI-compatible server: a second proxy with a
scripted engine.
"""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from typing import Any

import pytest

from harnessgym.errors import ConfigError
from harnessgym.message import Message, Sampling, ToolCall, ToolSpec
from harnessgym.proxy_client import ControlClient, OpenedSession
from harnessgym.run_config.session import SessionOptions
from harnessgym.store import bodies
from harnessgym.store.workers import WorkerRow
from harnessgym.traces.trajectories import rows_of
from harnessgym.traces.verification.verify import verify
from proxies.app import Proxy
from proxies.dialect import ModelRequest, OutputFormat
from proxies.language import PolicyLanguage
from proxies.upstream import TextCall, TextUpstream
from proxies.upstreams.litellm import LitellmUpstream
from proxies.upstreams.scripted import ScriptedUpstream
from tests.proxies.conftest import KEY, MakeWorld, World

pytestmark = pytest.mark.anyio
INSTALLED = find_spec("litellm") is not None
REQUIRED = "litellm" in os.environ.get("HARNESSGYM_REQUIRE", "")
needs_litellm = pytest.mark.skipif(
    not INSTALLED and not REQUIRED, reason="litellm is not installed: pip install 'harnessgym-rl[litellm]'"
)
HI = [{"role": "user", "content": "hi"}]
TOOLS = [
    {
        "type": "function",
        "function": {"name": "find", "parameters": {"properties": {"name": {"type": "string"}}}},
    }
]
CALL = '<tool_call>\n{"name": "find", "arguments": {"name": "red lamp"}}\n</tool_call>'
TEACHER = SessionOptions(upstream="teacher")


@asynccontextmanager
async def served(
    world: World, *answers: str, **settings: Any
) -> AsyncIterator[tuple[str, ScriptedUpstream, ControlClient]]:
    """A second proxy: its URL, its engine, its control client."""
    engine = ScriptedUpstream([world.text(answer) for answer in answers])
    proxy = Proxy(world.settings.model_copy(update=settings), world.store, connect=lambda row: engine)
    await proxy.start()
    control = ControlClient(proxy.control_address, KEY)
    try:
        await proxy.workers.put(WorkerRow("e0", None, "scripted", "", 0, "ready"))
        yield str(proxy.url), engine, control
    finally:
        await control.aclose()
        await proxy.stop()


async def teach(world: World, url: str, key: str, name: str = "teacher") -> OpenedSession:
    """A session whose calls an outside model at the other proxy answers."""
    address = (
        f"litellm:openai/teacher?api_base={url}/s/{key}/v1&max_retries=0&api_key_env=HARNESSGYM_TEST_KEY"
    )
    await world.add_worker(name, LitellmUpstream(address))  # type: ignore[arg-type]
    return await world.open(options=SessionOptions(upstream=name))


async def look_up(world: World, session: OpenedSession) -> tuple[dict[str, Any], dict[str, Any]]:
    """The teacher calls a tool, gets the result, and goes on: both of its choices."""
    first: dict[str, Any] = (await world.chat(session.key, HI, tools=TOOLS)).json()["choices"][0]
    result = {"role": "tool", "content": "47", "tool_call_id": first["message"]["tool_calls"][0]["id"]}
    second: dict[str, Any] = (
        await world.chat(session.key, [*HI, first["message"], result], tools=TOOLS)
    ).json()["choices"][0]
    return first, second


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARNESSGYM_TEST_KEY", "secret")


@needs_litellm
async def test_a_teachers_answers_are_recorded_as_text_and_continued(make_world: MakeWorld) -> None:
    async with (
        make_world("never asked<|im_end|>") as world,
        served(world, f"Looking.\n{CALL}<|im_end|>", "It costs 47.<|im_end|>") as (url, engine, control),
    ):
        behind = await control.open_session(world.rollout_id)
        session = await teach(world, url, behind.key)
        first, second = await look_up(world, session)
        assert first["finish_reason"] == "tool_calls"
        made = first["message"]["tool_calls"][0]
        assert json.loads(made["function"]["arguments"]) == {"name": "red lamp"}
        assert (second["message"]["content"], second["finish_reason"]) == ("It costs 47.", "stop")
        assert world.scripted("w0").asked == []
        assert len(engine.asked) == 2
        one, two = world.calls(session)
        behind_calls = {
            f"call {call.id}" for call in world.calls(behind)
        }  # of a version that nobody published
        assert two.parent_call_id == one.id
        assert world.completion(session, one).logprobs is None
        body = world.store.read(lambda conn: bodies.of_call(conn, one.id, "answer"))
        assert body is not None
        assert json.loads(body)["choices"][0]["message"]["content"] == "Looking."
        await world.control.seal(session.session_id)
        found = [finding for finding in verify(world.store).findings if finding.where not in behind_calls]
        reasons = {
            item.reason
            for item in world.store.read(
                lambda conn: rows_of(conn, world.rollout_id, group_id="g")
            ).exclusions
            if item.call_id in (one.id, two.id)
        }
        assert reasons == {"text_only"}
        assert found == []


@needs_litellm
async def test_the_teachers_conversation_is_the_harnesss_own(make_world: MakeWorld) -> None:
    """The second proxy sees the same messages: it continues its own answers token for token."""
    async with (
        make_world("x") as world,
        served(world, f"{CALL}<|im_end|>", "47<|im_end|>") as (url, engine, control),
    ):
        behind = await control.open_session(world.rollout_id)
        session = await teach(world, url, behind.key)
        await look_up(world, session)
        asked = [world.language.renderer.written(one.prompt).decode() for one in engine.asked]
        assert asked[1].startswith(asked[0] + CALL + "<|im_end|>")
        one, two = world.calls(behind)
        assert two.parent_call_id == one.id
        outer = [
            world.language.renderer.written(world.prompt(session, one)).decode()
            for one in world.calls(session)
        ]
        assert outer == asked


@needs_litellm
async def test_a_stream_gets_the_pieces_at_the_end(make_world: MakeWorld) -> None:
    async with make_world("x") as world, served(world, "All at once.<|im_end|>") as (url, _, control):
        session = await teach(world, url, (await control.open_session(world.rollout_id)).key)
        reply = await world.chat(session.key, HI, stream=True)
        chunks = [json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: {")]
        assert (
            "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks) == "All at once."
        )
        assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


@needs_litellm
async def test_sampling_that_the_session_fixes_is_what_the_teacher_is_asked(make_world: MakeWorld) -> None:
    async with make_world("x") as world, served(world, "ok<|im_end|>") as (url, engine, control):
        behind = await control.open_session(world.rollout_id)
        await teach(world, url, behind.key)
        fixed = {"temperature": 0.5, "max_tokens": 7, "stop": ["END"]}
        session = await world.open(options=TEACHER, sampling=fixed)
        assert (await world.chat(session.key, HI, max_tokens=5_000)).status_code == 200
        (asked,) = engine.asked
        assert (asked.sampling.max_tokens, asked.sampling.stop) == (7, ("END",))
        (call,) = world.calls(behind)
        body = json.loads(world.store.read(lambda conn: bodies.of_call(conn, call.id)) or b"")
        assert (body["temperature"], body["max_tokens"], body["stop"]) == (0.5, 7, ["END"])
        assert "top_p" not in body


@needs_litellm
async def test_what_the_teacher_refuses_reaches_the_harness_in_its_own_shape(make_world: MakeWorld) -> None:
    async with (
        make_world("x") as world,
        served(world, "ok<|im_end|>", max_length=60, worker_wait_s=0.2) as (url, _, control),
    ):
        good = await control.open_session(world.rollout_id)
        long = [{"role": "user", "content": "word " * 100}]
        session = await teach(world, url, good.key)
        overflow = await world.chat(session.key, long)
        assert (overflow.status_code, overflow.json()["error"]["code"]) == (400, "context_length_exceeded")
        assert "maximum context length is 60 tokens" in overflow.json()["error"]["message"]
        body = {"model": "m", "max_tokens": 8, "messages": long}
        for_messages = await world.http.post(f"{world.base(session)}/v1/messages", json=body)
        assert for_messages.status_code == 400
        assert "prompt is too long" in for_messages.json()["error"]["message"]
        future = await control.open_session(world.rollout_id, min_version=9)
        limited = await world.chat((await teach(world, url, future.key, "future")).key, HI)
        assert (limited.status_code, limited.json()["error"]["code"]) == (429, "rate_limit_exceeded")
        assert int(limited.headers["retry-after"]) >= 1
        unknown = await world.chat((await teach(world, url, "hg-wrong", "wrong")).key, HI)
        assert unknown.status_code == 403, unknown.text
        assert unknown.headers["x-should-retry"] == "false"
        assert "not yours" in unknown.json()["error"]["message"]
        missing = await world.chat(
            (await teach(world, f"{url}/s/{good.key}/nowhere", good.key, "missing")).key, HI
        )
        assert missing.status_code == 404
        gone = await world.chat((await teach(world, "http://127.0.0.1:9", good.key, "gone")).key, HI)
        assert gone.status_code == 502
        assert {call.status for call in world.calls(session)} == {"error"}
        assert verify(world.store).findings == ()


@needs_litellm
async def test_a_client_that_leaves_ends_the_teachers_call(make_world: MakeWorld) -> None:
    async with (
        make_world("x", disconnect_grace_s=0.1) as world,
        served(world, "slow<|im_end|>", disconnect_grace_s=0.1) as (url, engine, control),
    ):
        engine.gate.clear()
        behind = await control.open_session(world.rollout_id)
        session = await teach(world, url, behind.key)
        asked = asyncio.create_task(world.chat(session.key, HI))
        await world.status(session, 0, "intent")
        for _ in range(500):
            if engine.asked:
                break
            await asyncio.sleep(0.02)
        asked.cancel()
        await world.status(session, 0, "aborted")
        await world.status(behind, 0, "aborted")


@needs_litellm
async def test_the_key_is_read_from_the_environment(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with make_world("x") as world, served(world, "ok<|im_end|>") as (url, _, control):
        behind = await control.open_session(world.rollout_id)
        monkeypatch.setenv("HARNESSGYM_TEST_KEY", behind.key)
        address = f"litellm:openai/teacher?api_base={url}/v1&max_retries=0&api_key_env=HARNESSGYM_TEST_KEY"
        await world.add_worker("teacher", LitellmUpstream(address))  # type: ignore[arg-type]
        session = await world.open(options=TEACHER)
        reply = await world.chat(session.key, HI)
        assert reply.json()["choices"][0]["message"]["content"] == "ok", reply.text
        monkeypatch.delenv("HARNESSGYM_TEST_KEY")
        refused = await world.chat(session.key, HI)
        assert "HARNESSGYM_TEST_KEY" in refused.json()["error"]["message"]


async def test_raw_prompts_are_refused(make_world: MakeWorld) -> None:
    async with make_world("x") as world:
        await world.add_worker("teacher", LitellmUpstream("litellm:openai/x"))  # type: ignore[arg-type]
        session = await world.open(options=TEACHER)
        reply = await world.http.post(
            f"{world.base(session)}/v1/completions", json={"model": "m", "prompt": "Once"}
        )
        assert reply.status_code == 400
        assert "Raw prompts" in reply.json()["error"]["message"]


@pytest.mark.skipif(INSTALLED, reason="litellm is installed")
async def test_without_litellm_the_error_says_how_to_install_it(make_world: MakeWorld) -> None:
    async with make_world("x") as world:
        await world.add_worker("teacher", LitellmUpstream("litellm:openai/x"))  # type: ignore[arg-type]
        refused = await world.chat((await world.open(options=TEACHER)).key, HI)
        assert refused.status_code == 502
        assert "harnessgym-rl[litellm]" in refused.json()["error"]["message"]


def test_addresses() -> None:
    for wrong in ("litellm:", "litellm:?api_base=http://127.0.0.1:1", "litellm:openai/x?api_key=sk-secret"):
        with pytest.raises(ConfigError, match="not an outside model") as caught:
            LitellmUpstream(wrong)
        assert "sk-secret" not in str(caught.value)
    assert isinstance(LitellmUpstream("litellm:openai/x"), TextUpstream)
    assert not isinstance(ScriptedUpstream([[1]]), TextUpstream)


def test_a_request_in_litellms_words(language: PolicyLanguage) -> None:
    messages = (
        Message("user", "look", images=("data:image/png;base64,AA==",)),
        Message("assistant", "", reasoning="hm", tool_calls=(ToolCall("c1", "find", '{"name":  "x"}'),)),
        Message("tool", "47", tool_call_id="c1"),
    )
    output = OutputFormat("shape", {"type": "object"})
    request = ModelRequest("m", messages, (ToolSpec("find"),), tool_choice="find", output=output)
    call = TextCall("id", "session", 0, request, (1,), Sampling(top_p=0.9, top_k=5, max_tokens=9), language)
    told = LitellmUpstream("litellm:openai/x?timeout=3&api_base=http://127.0.0.1:1/v1")._arguments(call)
    assert (told["timeout"], told["api_base"]) == (3, "http://127.0.0.1:1/v1")
    assert (told["max_tokens"], told["top_p"], told["top_k"]) == (9, 0.9, 5)
    assert "temperature" not in told
    assert told["tool_choice"] == {"type": "function", "function": {"name": "find"}}
    assert told["response_format"]["json_schema"] == {"name": "shape", "schema": {"type": "object"}}
    user, assistant, tool = told["messages"]
    assert user["content"][1]["image_url"]["url"] == "data:image/png;base64,AA=="
    assert assistant["tool_calls"][0]["function"]["arguments"] == '{"name":  "x"}'
    assert "reasoning_content" not in assistant
    assert tool["tool_call_id"] == "c1"
