import base64
import json
from typing import Any

import pytest

from harnessgym.message import Message, ToolCall, ToolSpec
from proxies.dialect import (
    Answer,
    ModelRequest,
    OutputFormat,
    RequestProblem,
    TokenUsage,
)
from proxies.reading import BodyReader
from tests.proxies.responses_wire import (
    AGENTS,
    ENCRYPTED,
    FIND,
    FUNCTION,
    PATCH,
    RESPONSES,
    SCHEMA,
    TOOLS,
    USER,
    messages,
    parse,
)


def says(text: str, **more: Any) -> dict[str, Any]:
    return {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": text}],
        **more,
    }


def calls(name: str, call_id: str, arguments: str = "{}", **more: Any) -> dict[str, Any]:
    return {"type": "function_call", "name": name, "call_id": call_id, "arguments": arguments, **more}


def gives(call_id: str, output: Any) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": output}


def echo(request: ModelRequest) -> dict[str, Any]:
    """What an answer repeats of its request."""
    body: dict[str, Any] = json.loads(
        RESPONSES.render([Answer("a1", "m", Message("assistant"), "stop", TokenUsage(1, 2), 5)], request)
    )
    return body


def test_a_conversation() -> None:
    request = parse(
        instructions="Be brief.",
        input=[
            {"role": "developer", "content": "One."},
            {"type": "message", "role": "system", "content": [{"type": "input_text", "text": "Two."}]},
            {
                "role": "user",
                "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}],
            },
            {"type": "reasoning", "id": "rs_a1_0", "summary": [{"type": "summary_text", "text": "hm"}]},
            says("See."),
            calls("find", "call_a1_0", '{"name":  "lamp"}', id="fc_a1_0", status="completed"),
            calls("price", "call_a1_1"),
            gives("call_a1_0", "Q7"),
            gives("call_a1_1", [{"type": "input_text", "text": "4"}, {"type": "input_text", "text": "7"}]),
            says("47", phase="final_answer"),
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
            {"role": "developer", "content": "Later."},
        ],
    )
    assert request.instructions
    assert request.messages == (
        Message("system", "Be brief."),
        Message("system", "One.\n\nTwo."),
        Message("user", "a\nb"),
        Message("assistant", "See.", reasoning="hm", tool_calls=(FIND, ToolCall("call_a1_1", "price", "{}"))),
        Message("tool", "Q7", tool_call_id="call_a1_0"),
        Message("tool", "4\n7", tool_call_id="call_a1_1"),
        Message("assistant", "47"),
        Message("assistant", "No."),
        Message("system", "Later."),
    )
    assert parse(input="Hi").messages == (Message("user", "Hi"),)
    assert not parse(input="Hi").instructions


def test_images_are_kept() -> None:
    image = {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "low"}
    user, _, tool = messages(
        {"role": "user", "content": [image, {"type": "input_text", "text": "What?"}]},
        calls("view", "call_a1_0"),
        gives("call_a1_0", [image]),
    )
    assert user == Message("user", "What?", images=("data:image/png;base64,AA==",))
    assert tool == Message("tool", tool_call_id="call_a1_0", images=("data:image/png;base64,AA==",))


def test_forms_of_one_answer_have_one_digest() -> None:
    text = {"role": "assistant", "content": "See."}
    forms = [
        [says("See."), calls("find", "call_a1_0", '{"name":  "lamp"}')],
        [text, calls("find", "call_a1_0", '{"name":"lamp"}')],
        [{**text, "type": "message", "status": "completed", "id": "msg_a1_0"}, calls("find", "other", '{"name": "lamp"}')],
        [says("See.", content=[{"type": "output_text", "text": "S"}, {"type": "output_text", "text": "ee."}]),
         calls("find", "call_a1_0", {"name": "lamp"})],  # type: ignore[arg-type]
        [{"type": "reasoning", "id": "rs_1", "summary": []}, says("See."), calls("find", "call_a1_0", '{"name": "lamp"}')],
    ]  # fmt: skip
    assert len({messages(*form)[0].digest for form in forms}) == 1
    bare = calls("find", "call_a1_0")
    for content in (None, "", []):
        assert messages({"role": "assistant", "content": content}, bare)[0].digest == messages(bare)[0].digest
    assert messages({**bare, "arguments": ""})[0].digest == messages(bare)[0].digest


def test_items_find_together_by_their_answer() -> None:
    both = (ToolCall("call_a1_0", "find", "{}"), ToolCall("call_a1_1", "find", "{}"))
    results = (Message("tool", "1", tool_call_id="call_a1_0"), Message("tool", "2", tool_call_id="call_a1_1"))
    interleaved = messages(
        says("See.", id="msg_a1_0"),
        calls("find", "call_a1_0"), gives("call_a1_0", "1"),
        calls("find", "call_a1_1"), gives("call_a1_1", "2"),
        calls("find", "call_a2_0"),
    )  # fmt: skip
    assert interleaved == (
        Message("assistant", "See.", tool_calls=both),
        *results,
        Message("assistant", tool_calls=(ToolCall("call_a2_0", "find", "{}"),)),
    )
    foreign = messages(calls("find", "x1"), gives("x1", "1"), calls("find", "x2"), gives("x2", "2"))
    assert [message.role for message in foreign] == ["assistant", "tool", "assistant", "tool"]
    cut_off = messages(says("I thi", id="msg_a1_0"), says("I think.", id="msg_a2_0"))
    assert [message.content for message in cut_off] == ["I thi", "I think."]
    asked_between = messages(says("1", id="msg_a1_0"), USER, says("2", id="msg_a1_1"))
    assert [message.role for message in asked_between] == ["assistant", "user", "assistant"]


def test_tools() -> None:
    grammar = {"type": "grammar", "syntax": "lark", "definition": "start: x"}
    request = parse(
        tools=[*TOOLS, {**PATCH, "name": "sql", "format": grammar}, {"type": "function", "name": "bare"}]
    )
    text = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
    assert request.tools == (
        ToolSpec("find", "Find.", SCHEMA),
        ToolSpec("apply_patch", "Patch.", text, freeform=True),
        ToolSpec("agents__spawn", "Agents.\n\nFind.", SCHEMA, namespace="agents"),
        ToolSpec("agents__apply_patch", "Agents.\n\nPatch.", text, namespace="agents", freeform=True),
        ToolSpec("sql", "Patch.\n\nThe input must match this lark grammar:\nstart: x", text, freeform=True),
        ToolSpec("bare"),
    )
    for clash in ([AGENTS, AGENTS], [AGENTS, {**FUNCTION, "name": "agents__spawn"}]):
        with pytest.raises(
            RequestProblem, match="two tools would both be known as 'agents__spawn'"
        ) as caught:
            parse(tools=clash)
        assert caught.value.problem.kind == "malformed"


@pytest.mark.parametrize(
    ("choice", "name"),
    [
        ("required", "required"),
        (None, "auto"),
        ({"type": "function", "name": "find"}, "find"),
        ({"type": "custom", "name": "apply_patch"}, "apply_patch"),
        ({"type": "function", "name": "spawn", "namespace": "agents"}, "agents__spawn"),
    ],
)
def test_tool_choice(choice: object, name: str) -> None:
    request = parse(tools=TOOLS, tool_choice=choice)
    assert request.tool_choice == name
    assert echo(request)["tool_choice"] == (choice or "auto")


def test_options() -> None:
    request = parse(
        max_output_tokens=7, temperature=0.5, top_p=0.9, parallel_tool_calls=False, store=False, include=ENCRYPTED,
        reasoning={"effort": "high", "summary": "auto"}, metadata={"a": "b"}, prompt_cache_key="k", client_metadata={"x": "y"},
        truncation="auto", user="u", service_tier="auto", safety_identifier="s", stream=True, background=False, top_logprobs=0,
        text={"verbosity": "low", "format": {"type": "text"}}, stream_options={"include_obfuscation": False}, max_tool_calls=3,
    )  # fmt: skip
    assert (request.max_tokens, request.stream, request.output, request.previous) == (7, True, None, None)
    assert (request.parallel_tool_calls, parse().parallel_tool_calls) == (False, True)
    assert request.asked == {
        "max_output_tokens": 7, "temperature": 0.5, "top_p": 0.9, "parallel_tool_calls": False, "store": False,
        "include": ENCRYPTED, "reasoning": {"effort": "high", "summary": "auto"}, "metadata": {"a": "b"}, "truncation": "auto",
    }  # fmt: skip
    shape = {"type": "json_schema", "name": "out", "schema": SCHEMA, "strict": True}
    assert parse(text={"format": shape}).output == OutputFormat("out", SCHEMA)
    assert parse(text={"format": {"type": "json_object"}}).output == OutputFormat()


@pytest.mark.parametrize(
    "fields",
    [
        {"background": True},
        {"conversation": "conv_1"},
        {"prompt": {"id": "pmpt_1"}},
        {"top_logprobs": 2},
        {"include": ["message.output_text.logprobs"]},
        {"context_management": [{"type": "compaction"}]},
        {"text": {"format": {"type": "grammar"}}},
        {"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}},
        {"tool_choice": {"type": "web_search"}},
        *(
            {"tools": [{"type": kind}]}
            for kind in (
                "web_search", "file_search", "code_interpreter", "image_generation", "mcp", "tool_search",
            )
        ),
        {"tools": [{**FUNCTION, "defer_loading": True}]},
        {"input": [{"type": "mcp_call", "id": "x", "arguments": "{}", "name": "f", "server_label": "s"}]},
        {"input": [{"type": "web_search_call", "id": "ws_1"}]},
        {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}]},
        {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]},
        {"input": [{"role": "assistant", "content": [{"type": "input_image", "image_url": "data:"}]}]},
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(RequestProblem, match=r"not supported") as caught:
        parse(**fields)
    assert caught.value.problem.kind == "unsupported"


def test_a_previous_response() -> None:
    request = parse(previous_response_id="resp_0af1")
    assert request.previous == "0af1"
    assert parse(previous_response_id="resp_0af1", input=[]).messages == ()
    assert echo(request)["previous_response_id"] == "resp_0af1"
    for bad in ("0af1", "resp_", "msg_1", ""):
        with pytest.raises(RequestProblem, match=f"Previous response with id '{bad}' not found."):
            parse(previous_response_id=bad)


def test_tokens_are_counted_without_a_model() -> None:
    assert parse("/v1/responses/input_tokens", model=None).messages == (Message("user", "Hi"),)
    assert json.loads(RESPONSES.count(9)) == {"object": "response.input_tokens", "input_tokens": 9}
    counting = [route for route in RESPONSES.routes if route.path.endswith("input_tokens")]
    assert {route.purpose for route in counting} == {"count"}
    assert {"/v1/responses/input_tokens", "/responses/input_tokens"} <= {route.path for route in counting}


def test_reasoning_of_others() -> None:
    summary = [{"type": "summary_text", "text": "a"}, {"type": "summary_text", "text": "b"}]
    item = {"type": "reasoning", "id": "rs_1", "summary": summary, "encrypted_content": "gAAAAABo"}
    assert messages(item)[0].reasoning == "a\n\nb"
    full = {
        **item,
        "content": [{"type": "reasoning_text", "text": "all "}, {"type": "reasoning_text", "text": "of it"}],
    }
    assert messages(full)[0].reasoning == "all of it"
    for sealed in ("gAAAAABo", "not base64!", "ü", base64.b64encode(b"harnessgym-reasoning:\xff").decode()):
        with pytest.raises(RequestProblem, match="could not be verified"):
            messages({**item, "summary": [], "encrypted_content": sealed})


def test_what_an_earlier_request_had_is_not_read_again() -> None:
    reader = BodyReader()
    thought = {"type": "reasoning", "id": "rs_a1_0", "summary": [{"type": "summary_text", "text": "hm"}]}
    items = [
        USER,
        thought,
        says("See.", id="msg_a1_0"),
        calls("find", "call_a1_0", id="fc_a1_0"),
        gives("call_a1_0", "Q7"),
    ]
    later = [*items, says("47"), {"role": "user", "content": "Sure?"}]

    def read(given: list[dict[str, Any]]) -> ModelRequest:
        body = {
            "model": "m",
            "instructions": "Be brief.",
            "input": given,
            "tools": TOOLS,
            "client_metadata": {},
        }
        return RESPONSES.parse(reader.read(json.dumps(body).encode()), {":path": "/v1/responses"})

    first, second = read(items), read(later)
    assert [message.role for message in first.messages] == ["system", "user", "assistant", "tool"]
    pairs = [
        *zip(first.messages[1:], second.messages[1:4], strict=True),
        *zip(first.tools, second.tools, strict=True),
    ]
    assert all(one is other for one, other in pairs)
    assert [message.content for message in second.messages[4:]] == ["47", "Sure?"]
    assert second == parse(instructions="Be brief.", input=later, tools=TOOLS)
    items[2:4] = [says("See.", id="msg_a1_0"), calls("find", "call_a1_0", '{"name": "b"}', id="fc_a1_0")]
    assert [call.arguments for call in read(items).messages[2].tool_calls] == ['{"name": "b"}']


def test_a_retry_is_told_by_all_but_the_clients_metadata() -> None:
    asked = {"instructions": "Be brief.", "tools": TOOLS, "input": [USER, says("Hello.")]}
    same = parse(**asked, client_metadata={"a": "1", "b": "2"}).identity
    assert same == parse(**asked, client_metadata={"b": "2", "a": "1"}).identity
    swapped = {"content": "Hi", "role": "user"}
    assert same == parse(**{**asked, "input": [swapped, says("Hello.")]}).identity
    for other in (
        {"input": [USER]},
        {"input": [says("Hello."), USER]},
        {"input": "Hi"},
        {"input": []},
        {"tools": []},
    ):
        assert parse(**{**asked, **other}, previous_response_id="resp_1").identity != same
        assert (
            parse(**{**asked, **other, "previous_response_id": "resp_1"}).identity
            != parse(**asked, previous_response_id="resp_1").identity
        )
