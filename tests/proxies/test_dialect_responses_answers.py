"""Answers of the Responses protocol: whole or streamed they are the same items, and they come back as what
was sampled.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

from harnessgym.message import Message, ToolCall
from proxies.dialect import (
    Answer,
    Delta,
    Event,
    Finished,
    FinishReason,
    ModelRequest,
    Problem,
    ReasoningDelta,
    Stamp,
    TextDelta,
    TokenUsage,
    ToolCallDelta,
)
from tests.proxies.responses_wire import ENCRYPTED, FIND, RESPONSES, TOOLS, USER, messages, parse


def render(message: Message, request: ModelRequest, reason: FinishReason = "stop") -> dict[str, Any]:
    body: dict[str, Any] = json.loads(
        RESPONSES.render([Answer("a1", "m", message, reason, TokenUsage(40, 12, 8, 3), 5)], request)
    )
    return body


def stream(deltas: list[Delta], request: ModelRequest) -> list[tuple[bool, dict[str, Any]]]:
    async def source() -> AsyncIterator[Delta]:
        for delta in deltas:
            yield delta

    async def collect() -> list[Event]:
        return [event async for event in RESPONSES.stream(source(), Stamp("a1", "m", 5), request, 40)]

    out = []
    for event in asyncio.run(collect()):
        name, _, data = event.data.decode().partition("\n")
        body = json.loads(data.removeprefix("data: "))
        assert name == f"event: {body['type']}"
        out.append((event.act, body))
    return out


def deltas(message: Message, reason: FinishReason = "stop", size: int = 3) -> list[Delta]:
    def pieces(text: str) -> Iterator[str]:
        return (text[start : start + size] for start in range(0, len(text), size))

    said: list[Delta] = [ReasoningDelta(piece) for piece in pieces(message.reasoning)]
    said += [TextDelta(piece) for piece in pieces(message.content)]
    said += [ToolCallDelta(index, call) for index, call in enumerate(message.tool_calls)]
    return [*said, Finished(reason, TokenUsage(40, 12, 8, 3))]


PLAIN = ToolCall("call_a1_1", "apply_patch", '{"input": "*** Begin\\n\\u2028 ü"}')
ODD = ToolCall("call_a1_1", "apply_patch", '{"patch": "x", "input": "y"}')
SPAWN = ToolCall("call_a1_2", "agents__spawn", "{}")
ANSWERS = {
    "text": Message("assistant", "Hello\u2028wörld 🎉"),
    "reasoning": Message("assistant", "4", reasoning="First,\n\nthink. "),
    "only reasoning": Message("assistant", reasoning="First"),
    "calls": Message("assistant", "See.", reasoning="hm", tool_calls=(FIND, PLAIN, SPAWN)),
    "one call": Message("assistant", tool_calls=(FIND,)),
    "odd custom call": Message("assistant", tool_calls=(FIND, ODD)),
    "unknown tool": Message("assistant", tool_calls=(ToolCall("call_a1_0", "spawn", '{"a": 1}'),)),
    "empty": Message("assistant"),
}


@pytest.mark.parametrize("include", [[], ENCRYPTED], ids=["shown", "sealed"])
@pytest.mark.parametrize("name", sorted(ANSWERS))
def test_an_answer_that_comes_back_is_the_answer_that_was_given(name: str, include: list[str]) -> None:
    answer = ANSWERS[name]
    request = parse(tools=TOOLS, include=include, instructions="Be brief.", stream=True)
    whole = render(answer, request)
    Response.model_validate(whole, strict=True)
    back = parse(tools=TOOLS, input=[USER, *whole["output"]]).messages[-1]
    assert back.digest == answer.digest
    assert back.reasoning == answer.reasoning
    assert [call.id for call in back.tool_calls] == [call.id for call in answer.tool_calls]
    events = [event for _, event in stream(deltas(answer), request)]
    streamed = events[-1]["response"]
    assert streamed == whole
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == whole["output"]
    added = [event["item"] for event in events if event["type"] == "response.output_item.added"]
    assert [(item["type"], item["id"]) for item in added] == [(item["type"], item["id"]) for item in done]


@given(
    message=st.builds(
        Message,
        st.just("assistant"),
        st.text(max_size=20),
        st.text(max_size=20),
        st.lists(
            st.builds(
                ToolCall,
                st.integers(0, 3).map(lambda number: f"call_a1_{number}"),
                st.sampled_from(["find", "apply_patch", "agents__spawn", "agents__apply_patch", "other"]),
                st.dictionaries(
                    st.sampled_from(["input", "name"]), st.text(max_size=5) | st.integers(), max_size=2
                ).map(json.dumps),
            ),
            max_size=3,
        ).map(tuple),
    )
)
def test_any_answer_comes_back(message: Message) -> None:
    request = parse(tools=TOOLS)
    back = parse(tools=TOOLS, input=[USER, *render(message, request)["output"], USER]).messages
    assert [back[1].digest, len(back)] == [message.digest, 3]


def test_items_of_calls() -> None:
    request = parse(tools=TOOLS)
    _, _, find, patch, spawn = render(ANSWERS["calls"], request)["output"]
    assert find == {
        "id": "fc_a1_0", "type": "function_call", "status": "completed", "call_id": "call_a1_0", "name": "find",
        "arguments": '{"name":  "lamp"}',
    }  # fmt: skip
    assert patch == {
        "id": "ctc_a1_1", "type": "custom_tool_call", "status": "completed", "call_id": "call_a1_1", "name": "apply_patch",
        "input": "*** Begin\n\u2028 ü",
    }  # fmt: skip
    assert (spawn["type"], spawn["namespace"], spawn["name"]) == ("function_call", "agents", "spawn")
    odd = render(ANSWERS["odd custom call"], request)["output"][1]
    assert (odd["type"], odd["input"]) == ("custom_tool_call", ODD.arguments)


EVENTS = TypeAdapter[Any](ResponseStreamEvent)


UNTYPED = {"ResponseCustomToolCall.status"}
"""What the provider sends and the SDK's types leave out."""


def unknown(value: Any) -> Iterator[str]:
    """Fields that the official types do not have."""
    if isinstance(value, BaseModel):
        yield from {f"{type(value).__name__}.{name}" for name in value.__pydantic_extra__ or {}} - UNTYPED
        for name in type(value).model_fields:
            yield from unknown(getattr(value, name))
    elif isinstance(value, list):
        for item in value:
            yield from unknown(item)


@pytest.mark.parametrize("name", sorted(ANSWERS))
@pytest.mark.parametrize("reason", ["stop", "length"])
def test_every_event_is_of_the_official_protocol(name: str, reason: FinishReason) -> None:
    events = [
        event for _, event in stream(deltas(ANSWERS[name], reason), parse(tools=TOOLS, include=ENCRYPTED))
    ]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    for event in events:
        read = EVENTS.validate_python(event)
        assert read.type == event["type"]
        assert list(unknown(read)) == []


def test_the_order_of_a_stream() -> None:
    message = Message("assistant", "See.", reasoning="hmmm", tool_calls=(FIND, PLAIN))
    events = stream(deltas(message, "tool_calls"), parse(tools=TOOLS))
    assert [
        (act, event["type"].removeprefix("response."), event.get("output_index")) for act, event in events
    ] == [
        (False, "created", None),
        (False, "in_progress", None),
        (False, "output_item.added", 0),
        (False, "reasoning_summary_part.added", 0),
        (False, "reasoning_summary_text.delta", 0),
        (False, "reasoning_summary_text.delta", 0),
        (False, "reasoning_summary_text.done", 0),
        (False, "reasoning_summary_part.done", 0),
        (False, "output_item.done", 0),
        (False, "output_item.added", 1),
        (False, "content_part.added", 1),
        (False, "output_text.delta", 1),
        (False, "output_text.delta", 1),
        (False, "output_text.done", 1),
        (False, "content_part.done", 1),
        (True, "output_item.done", 1),
        (False, "output_item.added", 2),
        (True, "function_call_arguments.delta", 2),
        (True, "function_call_arguments.done", 2),
        (True, "output_item.done", 2),
        (False, "output_item.added", 3),
        (True, "custom_tool_call_input.delta", 3),
        (True, "custom_tool_call_input.done", 3),
        (True, "output_item.done", 3),
        (True, "completed", None),
    ]
    added = [event["item"] for _, event in events if event["type"] == "response.output_item.added"]
    assert [item.get("arguments", item.get("input")) for item in added] == [None, None, "", ""]
    assert events[0][1]["response"]["status"] == "in_progress"
    assert events[0][1]["response"]["usage"] is None
    assert events[-1][1]["response"]["usage"] == {
        "input_tokens": 40, "input_tokens_details": {"cached_tokens": 8, "cache_write_tokens": 0}, "output_tokens": 12,
        "output_tokens_details": {"reasoning_tokens": 3}, "total_tokens": 52,
    }  # fmt: skip


def test_text_after_a_call_is_a_message_of_its_own() -> None:
    said: list[Delta] = [
        TextDelta("1"),
        ToolCallDelta(0, FIND),
        TextDelta("2"),
        Finished("tool_calls", TokenUsage(1, 2)),
    ]
    output = stream(said, parse(tools=TOOLS))[-1][1]["response"]["output"]
    assert [item["id"] for item in output] == ["msg_a1_0", "fc_a1_0", "msg_a1_1"]
    whole = Message("assistant", "12", tool_calls=(FIND,))
    anonymous = [{key: value for key, value in item.items() if key != "id"} for item in output]
    for replayed in (output, anonymous, render(whole, parse(tools=TOOLS))["output"]):
        assert messages(*replayed)[0].digest == whole.digest


def test_an_answer_that_is_cut_off() -> None:
    message = Message("assistant", "I thi")
    body = render(message, parse(), "length")
    assert (body["status"], body["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert body["output"][0]["status"] == "incomplete"
    act, last = stream(deltas(message, "length"), parse())[-1]
    assert (act, last["type"], last["response"]) == (True, "response.incomplete", body)


def test_errors() -> None:
    problem = Problem("overflow", "Long.", tokens=9, max_tokens=5)
    status, _, body = RESPONSES.error(problem)
    assert status == 400
    assert json.loads(body)["error"] == {
        "message": ("Your input exceeds the context window of this model. Please adjust your input and try "
                   "again."),
        "type": "invalid_request_error", "param": "input", "code": "context_length_exceeded",
    }  # fmt: skip
    blocks = RESPONSES.stream_error(problem, Stamp("a1", "m", 1)).decode().split("\n\n")
    error, failed = (json.loads(block.split("data: ")[1]) for block in blocks if block)
    assert EVENTS.validate_python(error).type == "error"
    assert error["error"]["code"] == error["code"] == "context_length_exceeded"
    assert (failed["type"], failed["response"]["status"]) == ("response.failed", "failed")
    assert failed["response"]["error"]["code"] == "context_length_exceeded"
    assert b'"code":"server_error"' in RESPONSES.stream_error(
        Problem("upstream", "Gone."), Stamp("a1", "m", 1)
    )
    assert RESPONSES.keepalive() == b": keepalive\n\n"
