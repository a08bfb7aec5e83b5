"""Gemini: what its requests mean."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harnessgym.message import Message
from proxies.dialect import ModelRequest, Problem, RequestProblem
from proxies.dialects.gemini.contents import json_schema, result_text
from proxies.dialects.gemini.dialect import Gemini

PATH = "/v1beta/models/m:generateContent"
USER = {"role": "user", "parts": [{"text": "Hi"}]}


def parse(path: str = PATH, query: str = "", **body: Any) -> ModelRequest:
    headers = {":path": path, ":query": query}
    return Gemini().parse(json.dumps({"contents": [USER], **body}).encode(), headers)


def refused(**body: Any) -> Problem:
    with pytest.raises(RequestProblem) as caught:
        parse(**body)
    return caught.value.problem


def said(*contents: dict[str, Any]) -> tuple[Message, ...]:
    return parse(contents=[*contents, USER]).messages[:-1]


def model(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": "model", "parts": list(parts)}


def test_the_path_says_model_and_method() -> None:
    assert (parse().model, parse().stream) == ("m", False)
    streamed = parse("/v1/models/org/name-2.5:streamGenerateContent", "alt=sse&key=secret")
    assert (streamed.model, streamed.stream) == ("org/name-2.5", True)
    assert streamed.headers[":query"] == "alt=sse"
    with pytest.raises(RequestProblem, match="must name the model"):
        parse("/v1beta/elsewhere")


@pytest.mark.parametrize(
    "headers",
    [{"x-goog-api-key": "k"}, {":query": "alt=sse&key=k"}, {"authorization": "Bearer k"}],
    ids=["header", "query", "bearer"],
)
def test_the_key_comes_in_three_places(headers: dict[str, str]) -> None:
    assert Gemini().secret(headers) == "k"


def test_snake_case_and_single_objects_mean_the_same() -> None:
    tool = {"name": "f", "description": "F.", "parameters": {"type": "OBJECT"}}
    usual = parse(
        systemInstruction={"parts": [{"text": "Be brief."}, {"text": "Always."}]},
        tools=[{"functionDeclarations": [tool]}],
        generationConfig={
            "maxOutputTokens": 7,
            "stopSequences": ["x"],
            "topK": 3,
            "thinkingConfig": {"includeThoughts": True},
        },
    )
    docs = parse(
        contents={"parts": {"text": "Hi"}},
        system_instruction={"parts": [{"text": "Be brief."}, {"text": "Always."}]},
        tools={"function_declarations": tool},
        generation_config={
            "max_output_tokens": 7, "stop_sequences": ["x"], "top_k": 3, "thinking_config": {"include_thoughts": True},
        },
    )  # fmt: skip
    assert usual == docs
    assert usual.messages[0] == Message("system", "Be brief.\nAlways.")
    assert (usual.max_tokens, usual.stop) == (7, ("x",))
    assert usual.asked == {
        "topK": 3,
        "maxOutputTokens": 7,
        "stopSequences": ["x"],
        "thinkingConfig": {"includeThoughts": True},
    }


@pytest.mark.parametrize(
    "decorate",
    [
        lambda part: part,
        lambda part: {**part, "thoughtSignature": "c2tpcA=="},
        lambda part: {
            "functionCall": {"name": part["functionCall"]["name"], "args": part["functionCall"]["args"]}
        },
        lambda part: {"functionCall": {**part["functionCall"], "id": f"get__{part['functionCall']['id']}"}},
        lambda part: {"function_call": part["functionCall"], "thought_signature": "x"},
    ],
    ids=["as sent", "signed", "without id", "renamed id", "snake case"],
)
def test_what_clients_do_to_a_call_does_not_change_what_it_says(decorate: Any) -> None:
    call = {"functionCall": {"id": "call_1", "name": "get", "args": {"key": "a", "n": [1, 2]}}}
    plain = said(model({"text": "See."}, call))
    assert [message.digest for message in said(model({"text": "See."}, decorate(call)))] == [plain[0].digest]
    assert plain[0].tool_calls[0].parsed == {"key": "a", "n": [1, 2]}


def test_chunks_of_a_streamed_answer_are_one_message() -> None:
    call = {"functionCall": {"name": "get", "args": {}}}
    chunks = [
        model({"text": "Thi", "thought": True}),
        model({"text": "nk.", "thought": True}),
        model({"text": "He"}),
    ]
    (message,) = said(*chunks, model({"text": "llo"}), model(call), model({"text": ""}))
    assert (message.content, message.reasoning, len(message.tool_calls)) == ("Hello", "Think.", 1)


def test_results_find_their_calls_with_and_without_ids() -> None:
    def call(name: str, **more: str) -> dict[str, Any]:
        return {"functionCall": {"name": name, **more}}

    def result(name: str, text: str, **more: str) -> dict[str, Any]:
        return {"functionResponse": {"name": name, "response": {"output": text}, **more}}

    def answered(*contents: dict[str, Any]) -> list[tuple[str | None, str]]:
        messages = said(*contents)
        ids = [called.id for message in messages for called in message.tool_calls]
        results = [message for message in messages if message.role == "tool"]
        assert {message.tool_call_id for message in results} <= set(ids)
        return [(str(ids.index(str(message.tool_call_id))), message.content) for message in results]

    def user(*parts: dict[str, Any]) -> dict[str, Any]:
        return {"role": "user", "parts": list(parts)}

    assert answered(model(call("f"), call("f"), call("g")), user(result("f", "1"), result("f", "2"), result("g", "3"))) == [
        ("0", "1"), ("1", "2"), ("2", "3"),
    ]  # fmt: skip
    given_ids = model(call("f", id="x"), call("f", id="y"))
    assert answered(given_ids, user(result("f", "2", id="y"), result("f", "1", id="x"))) == [
        ("1", "2"),
        ("0", "1"),
    ]
    assert answered(given_ids, user(result("f", "1", id="lost"))) == [("0", "1")]
    assert answered(model(call("f")), user(result("f", "1")), model(call("f")), user(result("f", "2"))) == [
        ("0", "1"), ("1", "2"),
    ]  # fmt: skip


def test_texts_between_results_keep_their_place() -> None:
    result = {"functionResponse": {"name": "f", "response": {"result": "5"}}}
    messages = said(
        model({"functionCall": {"name": "f"}}),
        {"parts": [{"text": "a"}, {"text": "b"}, result, {"text": "c"}]},
    )
    assert [(message.role, message.content) for message in messages[1:]] == [
        ("user", "a\nb"),
        ("tool", "5"),
        ("user", "c"),
    ]


@pytest.mark.parametrize(
    ("response", "text"),
    [
        ({"output": "two\nlines"}, "two\nlines"),
        ({"result": "5"}, "5"),
        ({"output": 5}, '{"output":5}'),
        ({"error": "gone"}, '{"error":"gone"}'),
        ({"output": "a", "code": 0}, '{"code":0,"output":"a"}'),
        ({"b": 1.0, "a": [2.0, 2.5, {"ä": None}]}, '{"a":[2,2.5,{"ä":null}],"b":1}'),
        ({}, "{}"),
    ],
)
def test_a_response_is_text(response: dict[str, Any], text: str) -> None:
    assert result_text(response) == text


VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**53), 2**53),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(), inner, max_size=3)),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), VALUES, max_size=4))
def test_a_response_is_the_same_text_however_it_is_written(response: dict[str, Any]) -> None:
    shuffled = json.loads(json.dumps(dict(reversed(response.items())), indent=2))
    assert result_text(shuffled) == result_text(response)


def test_images() -> None:
    inline = {"inlineData": {"mimeType": "image/png", "data": "-_8"}}
    remote = {"fileData": {"mimeType": "image/jpeg", "fileUri": "https://host/a.jpg"}}
    (message,) = said({"parts": [inline, {"text": "What?"}, remote]})
    assert (message.content, message.images) == (
        "What?",
        ("data:image/png;base64,+/8=", "https://host/a.jpg"),
    )
    for part in (
        {"inlineData": {"mimeType": "audio/wav", "data": ""}},
        {"fileData": {"fileUri": "gs://bucket/a"}},
        {"executableCode": {"code": "1"}},
        {"text": "a", "videoMetadata": {"fps": 1}},
    ):
        assert refused(contents=[{"parts": [part]}]).kind in ("unsupported", "malformed")


@pytest.mark.parametrize(
    "tool", ["googleSearch", "codeExecution", "urlContext", "google_search", "mcpServers"]
)
def test_tools_of_the_provider_are_refused(tool: str) -> None:
    assert refused(tools=[{tool: {}}]).kind == "unsupported"


def test_schemas_become_json_schema() -> None:
    written = {
        "type": "OBJECT",
        "properties": {
            "type": {"type": "STRING", "nullable": True, "enum": ["STRING"]},
            "items": {"type": "ARRAY", "items": {"type": "INTEGER"}, "minItems": "1"},
            "either": {"any_of": [{"type": "NUMBER"}, {"type": "TYPE_UNSPECIFIED"}]},
        },
        "required": ["type"],
        "propertyOrdering": ["type"],
    }
    assert json_schema(written) == {
        "type": "object",
        "properties": {
            "type": {"type": ["string", "null"], "enum": ["STRING"]},
            "items": {"type": "array", "items": {"type": "integer"}, "minItems": 1},
            "either": {"anyOf": [{"type": "number"}, {}]},
        },
        "required": ["type"],
    }
    both = [{"name": "f", "parameters": written}, {"name": "f", "parametersJsonSchema": json_schema(written)}]
    first, second = (parse(tools=[{"functionDeclarations": [declared]}]).tools for declared in both)
    assert first == second


@pytest.mark.parametrize(
    ("calling", "choice"),
    [
        ({}, "auto"),
        ({"mode": "AUTO"}, "auto"),
        ({"mode": "NONE"}, "none"),
        ({"mode": "ANY"}, "required"),
        ({"mode": "ANY", "allowedFunctionNames": ["f"]}, "f"),
        ({"mode": "ANY", "allowedFunctionNames": ["g", "f", "h"]}, "required"),
        ({"mode": "ANY", "allowedFunctionNames": ["f", "g"]}, None),
        ({"mode": "AUTO", "allowedFunctionNames": ["f"]}, None),
        ({"mode": "VALIDATED"}, "auto"),
    ],
)
def test_tool_choice(calling: dict[str, Any], choice: str | None) -> None:
    tools = [{"functionDeclarations": [{"name": name} for name in "fgh"]}]
    body = {"tools": tools, "toolConfig": {"functionCallingConfig": calling}}
    if choice is None:
        assert refused(**body).kind in ("unsupported", "malformed")
    else:
        assert parse(**body).tool_choice == choice


def test_output_formats() -> None:
    def output(**config: Any) -> Any:
        return parse(generationConfig=config).output

    assert output(responseMimeType="text/plain") is None
    assert output(responseMimeType="application/json").schema is None
    assert output(responseMimeType="application/json", responseSchema={"type": "STRING"}).schema == {
        "type": "string"
    }
    assert output(responseMimeType="application/json", responseJsonSchema={"type": "STRING"}).schema == {
        "type": "string"
    }
    assert refused(generationConfig={"responseMimeType": "text/x.enum"}).kind == "unsupported"


@pytest.mark.parametrize(
    "body",
    [
        {"cachedContent": "cachedContents/a"},
        {"generationConfig": {"responseLogprobs": True}},
        {"generationConfig": {"responseModalities": ["AUDIO"]}},
        {"generationConfig": {"speechConfig": {"languageCode": "de"}}},
        {"contents": [USER, model({"text": "It is"})]},
        {"tools": [{"functionDeclarations": [{"name": "f", "behavior": "NON_BLOCKING"}]}]},
    ],
)
def test_what_cannot_be_done_is_refused(body: dict[str, Any]) -> None:
    assert refused(**body).kind == "unsupported"


def test_what_says_nothing_to_the_policy_is_passed_over() -> None:
    harm = [{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_NONE"}]
    assert parse(safetySettings=harm, labels={"a": "b"}, store=False, model="models/m") == parse()


def test_counting_takes_a_whole_request_and_a_conversation_that_ends_anywhere() -> None:
    path = "/v1beta/models/m:countTokens"
    whole = {"model": "models/m", "contents": [USER], "systemInstruction": {"parts": [{"text": "Be brief."}]}}
    assert [message.role for message in parse(path, generateContentRequest=whole).messages] == [
        "system",
        "user",
    ]
    assert [message.role for message in parse(path, contents=[USER, model({"text": "Hi"})]).messages] == [
        "user",
        "assistant",
    ]
    assert json.loads(Gemini().count(7))["totalTokens"] == 7


def test_errors_tell_google_s_clients_when_to_come_back() -> None:
    status, headers, body = Gemini().error(Problem("overloaded", "Busy.", retry_after_s=2.5))
    error = json.loads(body)["error"]
    assert (status, headers["retry-after"], error["code"], error["status"]) == (
        429,
        "3",
        429,
        "RESOURCE_EXHAUSTED",
    )
    assert error["details"] == [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "2.5s"}]
    assert (
        json.loads(Gemini().error(Problem("unknown_key", "No."))[2])["error"]["details"][0]["reason"]
        == "API_KEY_INVALID"
    )
