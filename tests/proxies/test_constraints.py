"""What a request demands of an answer: refused, put to the policy in words, or let be."""

from typing import Any

import pytest

from harnessgym.message import Message, ToolSpec
from harnessgym.proxy_client import OpenedSession
from harnessgym.run_config.session import SessionOptions
from proxies.constraints import constrained
from proxies.dialect import ModelRequest, OutputFormat, RequestProblem
from tests.proxies.conftest import MakeWorld, World

HI = Message("user", "hi")
FIND = ToolSpec("find")
ONE = "Call at most one tool at a time."
ASK = [{"role": "user", "content": "hi"}]


def asked(**fields: Any) -> ModelRequest:
    return ModelRequest("m", (HI,), **fields)


@pytest.mark.parametrize(
    "fields", [{"output": OutputFormat()}, {"tool_choice": "required"}, {"tool_choice": "find"}]
)
def test_demands_are_refused_or_put_in_words(fields: dict[str, Any]) -> None:
    request = asked(tools=(FIND,), **fields)
    with pytest.raises(RequestProblem, match="does not support being made to answer so"):
        constrained(request, "refuse")
    told = constrained(request, "prompt")
    assert [message.role for message in told.messages] == ["system", "user"]
    assert told.as_sent == request.messages


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"tools": (FIND,), "parallel_tool_calls": False}, ONE),
        ({"tools": (FIND,), "parallel_tool_calls": False, "tool_choice": "required"}, f"Call a tool.\n{ONE}"),
        ({"tools": (FIND,)}, ""),
        ({"parallel_tool_calls": False}, ""),
        ({"tools": (FIND,), "parallel_tool_calls": False, "tool_choice": "none"}, ""),
    ],
)
def test_one_tool_call_at_a_time_is_asked_for_where_tools_can_be_called(
    fields: dict[str, Any], words: str
) -> None:
    told = constrained(asked(**fields), "prompt")
    assert told.messages == ((Message("system", words), HI) if words else (HI,))


def test_one_tool_call_at_a_time_is_never_refused() -> None:
    request = asked(tools=(FIND,), parallel_tool_calls=False)
    assert constrained(request, "refuse") is request


def prompts(world: World, session: OpenedSession) -> list[str]:
    return [
        world.language.renderer.written(world.prompt(session, call)).decode() for call in world.calls(session)
    ]


@pytest.mark.anyio
@pytest.mark.parametrize("constraints", ["refuse", "prompt"])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("chat/completions", {"messages": ASK, "parallel_tool_calls": False, "tools": [FIND.to_template()]}),
        ("responses", {"input": ASK, "parallel_tool_calls": False, "tools": [{"type": "function", "name": "find"}]}),
        ("messages", {"messages": ASK, "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}, "max_tokens": 9,
                      "tools": [{"name": "find", "input_schema": {}}]}),
    ],
)  # fmt: skip
async def test_harnesses_that_ask_for_one_tool_call_are_served(
    make_world: MakeWorld, constraints: str, path: str, body: dict[str, Any]
) -> None:
    async with make_world("Yes.<|im_end|>") as world:
        session = await world.open(options=SessionOptions(constraints=constraints))  # type: ignore[arg-type]
        reply = await world.http.post(f"{world.base(session)}/v1/{path}", json={"model": "m", **body})
        assert reply.status_code == 200, reply.text
        (prompt,) = prompts(world, session)
        assert (ONE in prompt) == (constraints == "prompt")


@pytest.mark.anyio
async def test_demands_are_not_the_clients_words(make_world: MakeWorld) -> None:
    async with make_world("One.<|im_end|>") as world:
        session = await world.open(options=SessionOptions(constraints="prompt"))
        body = {
            "model": "m",
            "input": "hi",
            "instructions": "Be brief.",
            "text": {"format": {"type": "json_object"}},
        }
        reply = (await world.http.post(f"{world.base(session)}/v1/responses", json=body)).json()
        assert reply["instructions"] == "Be brief."
        assert "Be brief.\n\nAnswer with one JSON object" in prompts(world, session)[0]


@pytest.mark.anyio
async def test_a_conversation_that_goes_on_by_id_is_told_once(make_world: MakeWorld) -> None:
    async with make_world("One.<|im_end|>", "Two.<|im_end|>", "Three.<|im_end|>") as world:
        session = await world.open(options=SessionOptions(constraints="prompt"))
        tools = [{"type": "function", "name": "find"}]
        body: dict[str, Any] = {"model": "m", "input": "hi", "parallel_tool_calls": False, "tools": tools}
        for _ in range(3):
            reply = (await world.http.post(f"{world.base(session)}/v1/responses", json=body)).json()
            body["previous_response_id"] = reply["id"]
        assert [prompt.count(ONE) for prompt in prompts(world, session)] == [1, 1, 1]
        assert [world.break_of(call) for call in world.calls(session)[1:]] == [None, None]


@pytest.mark.anyio
async def test_demands_of_an_earlier_request_are_not_handed_on(make_world: MakeWorld) -> None:
    async with make_world("One.<|im_end|>", "Two.<|im_end|>") as world:
        session = await world.open(options=SessionOptions(constraints="prompt"))
        url = f"{world.base(session)}/v1/responses"
        asked = {"model": "m", "input": "hi", "text": {"format": {"type": "json_object"}}}
        first = (await world.http.post(url, json=asked)).json()
        await world.http.post(url, json={"model": "m", "input": "and?", "previous_response_id": first["id"]})
        assert ["JSON" in prompt for prompt in prompts(world, session)] == [True, False]
