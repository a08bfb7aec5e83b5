import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from harnessgym.message import Message, ToolCall, ToolSpec
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
from proxies.dialects.messages import Messages

MESSAGES = Messages()
FIRST, SECOND = ToolCall("toolu_a_0", "find", '{"name":  "lamp"}'), ToolCall("toolu_a_1", "price", "{}")
CACHE = {"cache_control": {"type": "ephemeral"}}


def parse(**fields: object) -> ModelRequest:
    given = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}], **fields}
    return MESSAGES.parse(json.dumps(given).encode(), {})


def text(said: str, **more: object) -> dict[str, object]:
    return {"type": "text", "text": said, **more}


def test_a_conversation() -> None:
    turns = [
        {"role": "user", "content": [text("a", **CACHE), text("b")]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                text("See."),
                {"type": "tool_use", "id": "toolu_a_0", "name": "find", "input": {"name": "lamp"}},
                {"type": "tool_use", "id": "toolu_a_1", "name": "price", "input": {}, **CACHE},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_a_0", "content": "Q7"},
                {
                    "type": "tool_result",
                    "tool_use_id": "toolu_a_1",
                    "content": [text("4"), text("7")],
                    "is_error": True,
                },
                text("Well?"),
                {"type": "tool_result", "tool_use_id": "toolu_a_2"},
            ],
        },
        {"role": "system", "content": [text("Later.")]},
    ]
    system = [
        text("x-anthropic-billing-header: cc_version=2.1.197.2bb;"),
        text("One.", **CACHE),
        text("Two."),
    ]
    request = parse(system=system, messages=turns)
    assert tuple(message.without_nonce() for message in request.messages) == (
        Message("system", "One.\nTwo."),
        Message("user", "a\nb"),
        Message(
            "assistant", "See.", reasoning="hm",
            tool_calls=(ToolCall("toolu_a_0", "find", '{"name": "lamp"}'), SECOND),
        ),
        Message("tool", "Q7", tool_call_id="toolu_a_0"),
        Message("tool", "4\n7", tool_call_id="toolu_a_1", is_error=True),
        Message("user", "Well?"),
        Message("tool", "", tool_call_id="toolu_a_2"),
        Message("system", "Later."),
    )  # fmt: skip


def test_moving_cache_marks_change_nothing() -> None:
    marked = parse(system=[text("S", **CACHE)], messages=[{"role": "user", "content": [text("Hi", **CACHE)]}])
    plain = parse(system="S")
    assert [message.digest for message in marked.messages] == [message.digest for message in plain.messages]


def test_tools_and_options() -> None:
    schema = {"type": "object", "properties": {}}
    request = parse(
        tools=[{"name": "f", "description": "F.", "input_schema": schema, **CACHE}, {"type": "custom", "name": "g"}],
        tool_choice={"type": "any", "disable_parallel_tool_use": True}, temperature=1, top_k=5, stop_sequences=["x"],
        thinking={"type": "enabled", "budget_tokens": 5}, metadata={"user_id": "u"}, stream=True,
        context_management={"edits": []},
    )  # fmt: skip
    assert request.tools == (ToolSpec("f", "F.", schema), ToolSpec("g"))
    assert (request.tool_choice, request.max_tokens, request.stop, request.stream) == (
        "required",
        9,
        ("x",),
        True,
    )
    assert (request.parallel_tool_calls, parse().parallel_tool_calls) == (False, True)
    assert parse(tool_choice={"type": "auto", "disable_parallel_tool_use": False}).parallel_tool_calls
    assert set(request.asked) == {"temperature", "top_k", "stop_sequences", "thinking", "max_tokens"}


def test_a_billing_line_takes_nothing_else_with_it() -> None:
    (system, _) = parse(system="x-anthropic-billing-header: cc_version=1;\nBe careful.").messages
    assert system.without_nonce().content == "Be careful."


def test_images_documents_and_foreign_thoughts() -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}
    linked = {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}
    document = {
        "type": "document",
        "source": {"type": "text", "media_type": "text/plain", "data": "the file"},
    }
    result = {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "done"}, image]}
    thought = {"type": "redacted_thinking", "data": "x"}
    request = parse(
        messages=[
            {"role": "user", "content": [image, {"type": "text", "text": "look"}, document]},
            {
                "role": "assistant",
                "content": [thought, {"type": "tool_use", "id": "t", "name": "f", "input": {}}],
            },
            {"role": "user", "content": [result, linked]},
        ]
    )
    url = "data:image/png;base64,AA=="
    assert [(message.role, message.content, message.images) for message in request.messages] == [
        ("user", "look\nthe file", (url,)),
        ("assistant", "", ()),
        ("tool", "done", (url,)),
        ("user", "", ("https://example.org/a.png",)),
    ]


@pytest.mark.parametrize("place", ["output_config", "output_format"])
def test_what_an_answer_must_be_is_read(place: str) -> None:
    wanted = {"type": "json_schema", "schema": {"type": "object"}}
    request = parse(**{place: {"format": wanted} if place == "output_config" else wanted})
    assert request.output == OutputFormat(schema={"type": "object"})


def test_keeping_all_thoughts_is_no_edit() -> None:
    assert parse(context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}).messages


@pytest.mark.parametrize(
    "fields",
    [
        {"mcp_servers": [{"type": "url"}]},
        {"output_config": {"format": {"type": "grammar"}}},
        {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}},
        {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
        {
            "messages": [
                {"role": "user", "content": [{"type": "image", "source": {"type": "file", "file_id": "f"}}]}
            ]
        },
        {"messages": [{"role": "user", "content": [{"type": "document", "source": {}}]}]},
        {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "I"}]},
    ],
)
def test_what_cannot_be_done_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(RequestProblem, match="not support") as caught:
        parse(**fields)
    assert caught.value.problem.kind == "unsupported"


def test_max_tokens_is_required() -> None:
    with pytest.raises(RequestProblem, match="max_tokens: Field required"):
        parse(max_tokens=None)


def test_answer() -> None:
    message = Message(
        "assistant", "See.", reasoning="hm", tool_calls=(FIRST, ToolCall("toolu_a_1", "f", "no object"))
    )
    out = json.loads(
        MESSAGES.render(
            [Answer("a1", "m", message, "length", TokenUsage(40, 12, 8), 5)], ModelRequest("m", ())
        )
    )
    assert out["content"][0].pop("signature")
    assert out == {
        "id": "msg_a1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [
            {"type": "thinking", "thinking": "hm"},
            {"type": "text", "text": "See."},
            {"type": "tool_use", "id": "toolu_a_0", "name": "find", "input": {"name": "lamp"}},
            {"type": "tool_use", "id": "toolu_a_1", "name": "f", "input": {"_raw_arguments": "no object"}},
        ],
        "stop_reason": "max_tokens",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 32, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 8, "output_tokens": 12,
        },
    }  # fmt: skip
    again = parse(
        messages=[{"role": "assistant", "content": out["content"]}, {"role": "user", "content": "Hi"}]
    )
    assert again.messages[0].digest == message.digest


async def _deltas() -> AsyncIterator[Delta]:
    finished = Finished("tool_calls", TokenUsage(40, 12, 8))
    for delta in (
        ReasoningDelta("h"), ReasoningDelta("m"), TextDelta("Se"), TextDelta("e."), ToolCallDelta(0, FIRST),
        ToolCallDelta(1, SECOND), finished,
    ):  # fmt: skip
        yield delta


async def _stream() -> list[tuple[bool, dict[str, object]]]:
    out = []
    async for event in MESSAGES.stream(_deltas(), Stamp("a1", "m", 5), ModelRequest("m", ()), 40):
        name, data = event.data.decode().removesuffix("\n\n").split("\n")
        value = json.loads(data.removeprefix("data: "))
        assert name == f"event: {value['type']}"
        out.append((event.act, value))
    return out


def test_stream() -> None:
    events = asyncio.run(_stream())
    act, start = events.pop(0)
    assert not act
    assert (
        start["message"]["id"],
        start["message"]["content"],
        start["message"]["usage"]["input_tokens"],
    ) == (
        "msg_a1",
        [],
        40,
    )
    signature = events[3][1]["delta"].pop("signature")
    whole = json.loads(
        MESSAGES.render(
            [Answer("a1", "m", Message("assistant", reasoning="hm"), "stop", TokenUsage(1, 1), 5)],
            ModelRequest("m", ()),
        )
    )
    assert signature == whole["content"][0]["signature"]

    def block(
        index: int, start: dict[str, object], *deltas: dict[str, object], act: bool = False
    ) -> list[tuple[bool, object]]:
        return [
            (False, {"type": "content_block_start", "index": index, "content_block": start}),
            *((act, {"type": "content_block_delta", "index": index, "delta": delta}) for delta in deltas),
            (act, {"type": "content_block_stop", "index": index}),
        ]

    thoughts = [{"type": "thinking_delta", "thinking": "h"}, {"type": "thinking_delta", "thinking": "m"}]
    assert events == [
        *block(0, {"type": "thinking", "thinking": "", "signature": ""}, *thoughts, {"type": "signature_delta"}),
        *block(1, text(""), {"type": "text_delta", "text": "Se"}, {"type": "text_delta", "text": "e."}),
        *(
            event
            for index, call in enumerate((FIRST, SECOND))
            for event in block(
                2 + index,
                {"type": "tool_use", "id": call.id, "name": call.name, "input": {}},
                {"type": "input_json_delta", "partial_json": call.arguments},
                act=True,
            )
        ),
        (
            True,
            {
                "type": "message_delta",
                "delta": {"stop_reason": "tool_use", "stop_sequence": None},
                "usage": {
                    "input_tokens": 32, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 8, "output_tokens": 12,
                },
            },
        ),
        (True, {"type": "message_stop"}),
    ]  # fmt: skip


def test_error_shape() -> None:
    status, _, body = MESSAGES.error(Problem("unknown_key", "invalid x-api-key"))
    assert status == 401
    assert json.loads(body) == {
        "type": "error", "error": {"type": "authentication_error", "message": "invalid x-api-key"}, "request_id": None,
    }  # fmt: skip
    assert MESSAGES.keepalive() == b'event: ping\ndata: {"type":"ping"}\n\n'
    assert MESSAGES.stream_error(Problem("overloaded", "Busy."), Stamp("a1", "m", 1)).startswith(
        b"event: error\ndata: {"
    )
