import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from harnessgym.message import Message, ToolCall, ToolSpec
from harnessgym.traces.transcript import to_wire
from proxies.dialect import (
    Answer,
    Delta,
    Finished,
    ModelRequest,
    OutputFormat,
    Problem,
    ReasoningDelta,
    RequestProblem,
    Stamp,
    TextDelta,
    TokenUsage,
    ToolCallDelta,
)
from proxies.dialects.chat import Chat

CHAT = Chat()
CALL = ToolCall("call_a_0", "find", '{"name":  "lamp"}')
WIRE_CALL = {
    "id": "call_a_0",
    "type": "function",
    "function": {"name": "find", "arguments": '{"name":  "lamp"}'},
}


def parse(**fields: object) -> ModelRequest:
    return CHAT.parse(
        json.dumps({"model": "m", "messages": [{"role": "user", "content": "Hi"}], **fields}).encode(), {}
    )


def messages(*given: dict[str, object]) -> tuple[Message, ...]:
    return parse(messages=list(given)).messages


def test_a_conversation() -> None:
    assert messages(
        {"role": "developer", "content": "One."},
        {"role": "system", "content": [{"type": "text", "text": "Two."}]},
        {
            "role": "user",
            "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
            "name": "ann",
        },
        {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [WIRE_CALL]},
        {"role": "tool", "tool_call_id": "call_a_0", "content": [{"type": "text", "text": "Q7"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "4"}, {"type": "text", "text": "7"}]},
        {"role": "system", "content": "Later."},
    ) == (
        Message("system", "One.\n\nTwo."),
        Message("user", "a\nb", name="ann"),
        Message("assistant", reasoning="hm", tool_calls=(CALL,)),
        Message("tool", "Q7", tool_call_id="call_a_0"),
        Message("assistant", "47"),
        Message("system", "Later."),
    )


def test_forms_of_one_assistant_message_have_one_digest() -> None:
    arguments = {"name": "lamp"}
    other = {
        "id": "other",
        "type": "function",
        "function": {"name": "find", "arguments": json.dumps(arguments)},
    }
    bare = {"id": "call_a_0", "function": {"name": "find", "arguments": arguments}}
    forms = [
        {"role": "assistant", "content": None, "tool_calls": [WIRE_CALL]},
        {"role": "assistant", "content": "", "tool_calls": [other], "refusal": None},
        {"role": "assistant", "tool_calls": [bare], "function_call": None, "audio": None},
        {"role": "assistant", "content": [], "tool_calls": [WIRE_CALL]},
    ]
    assert len({messages(form)[0].digest for form in forms}) == 1


def test_tools_and_options() -> None:
    schema = {"type": "object", "properties": {}}
    tools = [{"type": "function", "function": {"name": "f", "description": "F.", "parameters": schema}}]
    request = parse(
        tools=[*tools, {"type": "function", "function": {"name": "g"}}],
        tool_choice={"type": "function", "function": {"name": "g"}},
        temperature=0, max_completion_tokens=7, stop="x", stream=True, stream_options={"include_usage": True}, n=1, store=False,
        response_format={"type": "text"}, logprobs=False, user="u", parallel_tool_calls=True,
    )  # fmt: skip
    assert request.tools == (ToolSpec("f", "F.", schema), ToolSpec("g"))
    assert (request.tool_choice, request.max_tokens, request.stop) == ("g", 7, ("x",))
    assert request.stream
    assert request.include_usage
    assert request.asked == {
        "temperature": 0,
        "max_completion_tokens": 7,
        "stop": "x",
        "parallel_tool_calls": True,
    }


@pytest.mark.parametrize(
    "fields",
    [
        {"logprobs": True},
        {"top_logprobs": 3},
        {"modalities": ["text", "audio"]},
        {"audio": {"voice": "a"}},
        {"functions": [{"name": "f"}]},
        {"tools": [{"type": "custom", "custom": {"name": "f"}}]},
        {"tool_choice": {"type": "allowed_tools"}},
        {"messages": [{"role": "function", "name": "f", "content": "x"}]},
        {"messages": [{"role": "system", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]},
        {"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]},
        {"messages": [{"role": "assistant", "content": "", "function_call": {"name": "f", "arguments": ""}}]},
    ],
)
def test_what_cannot_be_done_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(RequestProblem, match=r"not supported|only") as caught:
        parse(**fields)
    assert caught.value.problem.kind == "unsupported"


def test_what_an_answer_must_be_is_read() -> None:
    assert parse(response_format={"type": "text"}).output is None
    assert parse(response_format={"type": "json_object"}).output == OutputFormat()
    schema = {"type": "object"}
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    assert parse(response_format=wanted).output == OutputFormat("x", schema)
    assert (parse().n, parse(n=3).n) == (1, 3)
    calls = [
        parse(**fields).parallel_tool_calls
        for fields in ({}, {"parallel_tool_calls": None}, {"parallel_tool_calls": False})
    ]
    assert calls == [True, True, False]


def test_images_stand_behind_the_text() -> None:
    shown = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA==", "detail": "low"}}
    parts = [shown, {"type": "text", "text": "what is it?"}]
    called = {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{}"}}]}
    result = {"role": "tool", "tool_call_id": "c", "content": parts}
    request = parse(messages=[{"role": "user", "content": parts}, called, result])
    assert [message.images for message in request.messages] == [
        ("data:image/png;base64,AA==",),
        (),
        ("data:image/png;base64,AA==",),
    ]
    assert request.messages[0].content == "what is it?"
    assert request.messages[0].digest != Message("user", "what is it?").digest


@pytest.mark.parametrize(
    "fields", [{"n": 129}, {"n": 0}, {"response_format": {"type": "yaml"}}, {"parallel_tool_calls": "no"}]
)
def test_nonsense_is_malformed(fields: dict[str, object]) -> None:
    with pytest.raises(RequestProblem) as caught:
        parse(**fields)
    assert caught.value.problem.kind == "malformed"


def test_answer() -> None:
    message = Message("assistant", reasoning="hm", tool_calls=(CALL,))
    answer = Answer("a1", "m", message, "tool_calls", TokenUsage(40, 12, 8, 3), 5)
    assert json.loads(CHAT.render([answer], ModelRequest("m", ()))) == {
        "id": "chatcmpl-a1",
        "object": "chat.completion",
        "created": 5,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant", "content": None, "refusal": None, "reasoning_content": "hm", "tool_calls": [WIRE_CALL],
                },
                "logprobs": None,
                "finish_reason": "tool_calls",
            }
        ],
        "usage": {
            "prompt_tokens": 40, "completion_tokens": 12, "total_tokens": 52, "prompt_tokens_details": {"cached_tokens": 8},
            "completion_tokens_details": {"reasoning_tokens": 3},
        },
        "system_fingerprint": None,
    }  # fmt: skip


async def _deltas() -> AsyncIterator[Delta]:
    for delta in (
        ReasoningDelta("hm"),
        TextDelta("4"),
        ToolCallDelta(0, CALL),
        Finished("tool_calls", TokenUsage(3, 4)),
    ):
        yield delta


async def _stream(include_usage: bool) -> list[tuple[bool, object]]:
    request = ModelRequest("m", (), stream=True, include_usage=include_usage)
    out: list[tuple[bool, object]] = []
    async for event in CHAT.stream(_deltas(), Stamp("a1", "m", 5), request, 3):
        text = event.data.decode().removeprefix("data: ")
        assert text.endswith("\n\n")
        out.append((event.act, text.strip() if "[DONE]" in text else json.loads(text)))
    return out


def test_stream() -> None:
    events = asyncio.run(_stream(include_usage=True))
    assert events.pop() == (True, "[DONE]")
    act, last = events.pop()
    assert (act, last["choices"]) == (True, [])
    assert last["usage"]["total_tokens"] == 7
    assert [
        (act, chunk["choices"][0]["delta"], chunk["choices"][0]["finish_reason"]) for act, chunk in events
    ] == [
        (False, {"role": "assistant", "content": ""}, None),
        (False, {"reasoning_content": "hm"}, None),
        (False, {"content": "4"}, None),
        (True, {"tool_calls": [{"index": 0, **WIRE_CALL}]}, None),
        (True, {}, "tool_calls"),
    ]
    assert all(chunk["usage"] is None and chunk["id"] == "chatcmpl-a1" for _, chunk in events)
    without = asyncio.run(_stream(include_usage=False))
    assert not any("usage" in chunk for _, chunk in without[:-1])


def test_error_shape() -> None:
    status, _, body = CHAT.error(Problem("unknown_key", "Incorrect API key provided."))
    assert status == 401
    assert json.loads(body) == {
        "error": {
            "message": "Incorrect API key provided.", "type": "invalid_request_error", "param": None, "code": "invalid_api_key",
        }
    }  # fmt: skip
    assert CHAT.keepalive() == b": keepalive\n\n"


def test_a_failed_tools_result_reads_back_from_what_is_written_of_it() -> None:
    failed = Message("tool", "no such key", tool_call_id="c", is_error=True)
    assert parse(messages=[to_wire(failed)]).messages == (failed,)
    with pytest.raises(RequestProblem, match=r"messages\[0\]\.is_error: expected a boolean"):
        parse(messages=[{**to_wire(failed), "is_error": "yes"}])
