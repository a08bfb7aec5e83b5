"""Contents, parts, tools and schemas of the Gemini protocol."""

from collections.abc import Callable
from typing import Any

import pytest

from harnessgym.message import Message, ToolCall, ToolSpec
from proxies.dialect import RequestProblem
from proxies.dialects.body import Fields
from proxies.dialects.gemini.contents import (
    RAW_ARGUMENTS,
    camel,
    json_schema,
    many,
    only_known,
    read_contents,
    read_system,
    read_tool_choice,
    read_tools,
    result_text,
)


def messages(*contents: dict[str, Any]) -> list[Message]:
    return read_contents(many(Fields({"contents": list(contents)}), "contents"))


def user(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "parts": list(parts)}


def model(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": "model", "parts": list(parts)}


def call(name: str, args: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    return {"functionCall": {"name": name, "args": args, **fields}}


def response(name: str, text: str, **fields: Any) -> dict[str, Any]:
    return {"functionResponse": {"name": name, "response": {"output": text}, **fields}}


def problem(read: Callable[[], object]) -> tuple[str, str]:
    """The kind and message of the problem that a read raises."""
    with pytest.raises(RequestProblem) as caught:
        read()
    return caught.value.problem.kind, caught.value.problem.message


@pytest.mark.parametrize(
    ("contents", "kind", "message"),
    [
        ([{"role": "system", "parts": [{"text": "x"}]}], "malformed", "contents[0].role: Please use a valid"),
        ([user({"text": "x"}), user()], "malformed", "contents[1].parts: contents.parts must not be empty."),
        ([{"parts": [{"text": "x"}], "name": "n"}], "malformed", "Unknown name \"name\" at 'contents[0]'"),
        ([user({})], "malformed", "contents[0].parts[0]: the part must have exactly one field set"),
        ([user({"text": "a", "inlineData": {}})], "malformed", "exactly one field set: text, functionCall"),
        ([user({"executableCode": {}})], "unsupported", "contents[0].parts[0].executableCode: not supported"),
        ([user(call("f"))], "malformed", "function calls belong into contents of role 'model'"),
        ([model(response("f", "x"))], "unsupported", "functionResponse: not supported in a model's content"),
        ([model({"inlineData": {}})], "unsupported", "inlineData: not supported in a model's content"),
        ([user({"text": 5})], "malformed", "contents[0].parts[0].text: expected a string, got int."),
        (
            [model(call("f", note=1))],
            "malformed",
            'Unknown name "note" at \'contents[0].parts[0].functionCall',
        ),
        ([model({"functionCall": {"args": {}}})], "malformed", "functionCall.name: Field required"),
        ([user(response("f", "x", willContinue=True))], "unsupported", "willContinue: not supported"),
        ([user({"inlineData": {"data": "AA=="}})], "malformed", "inlineData.mimeType: Field required"),
        (
            [user({"inlineData": {"mimeType": "text/csv", "data": ""}})],
            "unsupported",
            "mimeType: 'text/csv' is not supported by this endpoint; only text and images are.",
        ),
        ([user({"fileData": {"fileUri": "http://host/a.png"}})], "unsupported", "only https URLs"),
        ([user({"fileData": {"mimeType": "image/png"}})], "malformed", "fileData.fileUri: Field required"),
    ],
)
def test_a_bad_content_is_refused_with_its_place(
    contents: list[dict[str, Any]], kind: str, message: str
) -> None:
    refusal = problem(lambda: messages(*contents))
    assert refusal[0] == kind
    assert message in refusal[1]


@pytest.mark.parametrize("role", ["user", "function", "tool", "", None])
def test_other_roles_are_the_user_s(role: str | None) -> None:
    assert messages({"role": role, "parts": [{"text": "Hi"}]}) == [Message("user", "Hi")]


def test_texts_of_one_content_are_lines() -> None:
    assert messages(user({"text": "a"}, {"text": "b"})) == [Message("user", "a\nb")]


def test_thoughts_are_reasoning() -> None:
    parts = ({"text": "Hm. ", "thought": True}, {"text": "Yes."}, {"text": "Really.", "thought": True})
    assert messages(model(*parts)) == [Message("assistant", "Yes.", reasoning="Hm. Really.")]


def test_a_signature_alone_says_nothing() -> None:
    assert messages(model({"thoughtSignature": "abc"}, {"text": "Yes."})) == [Message("assistant", "Yes.")]


def test_contents_of_a_stream_are_one_message_until_the_user_speaks() -> None:
    read = messages(model({"text": "a"}), model({"text": "b"}), user({"text": "c"}), model({"text": "d"}))
    assert [(message.role, message.content) for message in read] == [
        ("assistant", "ab"),
        ("user", "c"),
        ("assistant", "d"),
    ]


def test_calls_without_ids_are_numbered_through_the_conversation() -> None:
    read = messages(model(call("f"), call("g")), user(response("f", "1")), model(call("h")))
    ids = [made.id for message in read for made in message.tool_calls]
    assert ids == ["call_0", "call_1", "call_2"]


def test_responses_with_one_name_answer_calls_in_order() -> None:
    read = messages(
        model(call("f", {"x": 1}), call("f", {"x": 2})), user(response("f", "one"), response("f", "two"))
    )
    assert [(message.tool_call_id, message.content) for message in read[1:]] == [
        ("call_0", "one"),
        ("call_1", "two"),
    ]


def test_an_id_finds_its_call_before_a_name_does() -> None:
    calls = model(call("f", id="a"), call("f", id="b"))
    read = messages(calls, user(response("f", "second", id="b"), response("f", "first")))
    assert [(message.tool_call_id, message.content) for message in read[1:]] == [
        ("b", "second"),
        ("a", "first"),
    ]


@pytest.mark.parametrize(("fields", "call_id"), [({}, "call_f"), ({"id": "lost"}, "lost")])
def test_a_response_without_a_call_keeps_its_own_id(fields: dict[str, str], call_id: str) -> None:
    assert messages(user(response("f", "x", **fields)))[0].tool_call_id == call_id


def test_arguments_that_are_no_object_come_back_as_they_were_sampled() -> None:
    (message,) = messages(model(call("f", {RAW_ARGUMENTS: "not json"})))
    assert message.tool_calls == (ToolCall("call_0", "f", "not json"),)


@pytest.mark.parametrize("args", [{RAW_ARGUMENTS: "x", "y": 1}, {RAW_ARGUMENTS: 3}])
def test_an_argument_may_have_the_name_of_the_raw_ones(args: dict[str, Any]) -> None:
    (message,) = messages(model(call("f", args)))
    assert message.tool_calls[0].parsed == args


def test_a_response_may_have_images() -> None:
    image = {"inlineData": {"mimeType": "image/png", "data": "AA=="}}
    (message,) = messages(user(response("shot", "done", parts=[image])))
    assert (message.content, message.images) == ("done", ("data:image/png;base64,AA==",))


@pytest.mark.parametrize(
    ("data", "standard"), [("-_8", "+/8="), ("AAAA", "AAAA"), ("AA", "AA=="), ("AA==", "AA=="), ("", "")]
)
def test_base64_of_either_alphabet_becomes_the_standard_one(data: str, standard: str) -> None:
    (message,) = messages(user({"inlineData": {"mimeType": "image/gif", "data": data}}))
    assert message.images == (f"data:image/gif;base64,{standard}",)


def test_a_file_without_a_type_is_taken_for_an_image() -> None:
    (message,) = messages(user({"fileData": {"fileUri": "https://host/a"}}))
    assert message.images == ("https://host/a",)


@pytest.mark.parametrize(
    ("instruction", "system"),
    [
        (None, []),
        ({"parts": []}, []),
        ({"parts": [{"text": ""}]}, []),
        ({"parts": {"text": "Be brief."}}, [Message("system", "Be brief.")]),
        ({"parts": [{"text": "a"}, {"text": "b"}]}, [Message("system", "a\nb")]),
    ],
)
def test_the_system_instruction(instruction: Any, system: list[Message]) -> None:
    assert read_system(Fields({"systemInstruction": instruction})) == system


def test_a_system_instruction_is_text() -> None:
    image = {"inlineData": {"mimeType": "image/png", "data": ""}}
    kind, message = problem(lambda: read_system(Fields({"systemInstruction": {"parts": [image]}})))
    assert kind == "unsupported"
    assert message == (
        "systemInstruction.parts[0].inlineData: system instructions are text only on this endpoint."
    )


def test_keys_become_camel_case_and_a_leading_underscore_stays() -> None:
    fields = camel(Fields({"function_call": 1, "inline_data_2": 2, "_raw": 3, "text": 4}, "a.b"))
    assert fields.raw == {"functionCall": 1, "inlineData2": 2, "_raw": 3, "text": 4}
    assert fields.path == "a.b"


def test_unknown_members_without_a_value_are_passed_over() -> None:
    only_known(Fields({"known": 1, "other": None}), frozenset({"known"}))
    _, message = problem(lambda: only_known(Fields({"other": 0}), frozenset({"known"})))
    assert message == 'Invalid JSON payload received. Unknown name "other": Cannot find field.'


@pytest.mark.parametrize(
    ("declaration", "kind", "message"),
    [
        ({"name": "f", "strict": True}, "malformed", 'Unknown name "strict"'),
        ({"name": "f", "behavior": "NON_BLOCKING"}, "unsupported", "only BLOCKING functions"),
        ({"description": "F."}, "malformed", "name: Field required"),
        (
            {"name": "f", "parameters": {"type": "OBJECT"}, "parametersJsonSchema": {"type": "object"}},
            "malformed",
            "parametersJsonSchema: cannot be set together with parameters.",
        ),
    ],
)
def test_a_bad_declaration_is_refused(declaration: dict[str, Any], kind: str, message: str) -> None:
    fields = Fields({"tools": [{"functionDeclarations": [declaration]}]})
    refusal = problem(lambda: read_tools(fields))
    assert refusal[0] == kind
    assert message in refusal[1]


def test_functions_of_several_tools_are_one_list() -> None:
    fields = Fields(
        {"tools": [{"functionDeclarations": {"name": "f"}}, {"function_declarations": [{"name": "g"}]}, {}]}
    )
    assert read_tools(fields) == (ToolSpec("f"), ToolSpec("g"))


@pytest.mark.parametrize(
    ("config", "kind", "message"),
    [
        (
            {"functionCallingConfig": {"mode": "SOMETIMES"}},
            "malformed",
            "'SOMETIMES' is not one of AUTO, VALIDATED",
        ),
        (
            {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["h"]}},
            "malformed",
            "toolConfig.functionCallingConfig.allowedFunctionNames: 'h' is not among the tools.",
        ),
        ({"functionCallingConfig": {"allowedFunctionNames": ["f"]}}, "malformed", "when the mode is ANY"),
        ({"retrievalConfig": {}}, "malformed", 'Unknown name "retrievalConfig"'),
        ({"functionCallingConfig": {"temperature": 1}}, "malformed", 'Unknown name "temperature"'),
        ({"includeServerSideToolInvocations": True}, "unsupported", "includeServerSideToolInvocations"),
    ],
)
def test_a_bad_tool_config_is_refused(config: dict[str, Any], kind: str, message: str) -> None:
    tools = (ToolSpec("f"), ToolSpec("g"))
    refusal = problem(lambda: read_tool_choice(Fields({"toolConfig": config}), tools))
    assert refusal[0] == kind
    assert message in refusal[1]


def test_allowed_names_without_calls_ask_for_nothing() -> None:
    config = {"functionCallingConfig": {"mode": "NONE", "allowedFunctionNames": ["anything"]}}
    assert read_tool_choice(Fields({"toolConfig": config}), ()) == "none"


@pytest.mark.parametrize(
    ("schema", "converted"),
    [
        ({"type": "STRING", "nullable": False}, {"type": "string"}),
        ({"type": "STRING", "nullable": True}, {"type": ["string", "null"]}),
        ({"type": ["string", "null"], "nullable": True}, {"type": ["string", "null"]}),
        ({"min_length": "3", "maxLength": "x"}, {"minLength": 3, "maxLength": "x"}),
        ({"minimum": "3"}, {"minimum": "3"}),
        (
            {"properties": {"min_items": {"type": "NUMBER"}}},
            {"properties": {"min_items": {"type": "number"}}},
        ),
        ({"$defs": {"A": {"type": "ARRAY"}}}, {"$defs": {"A": {"type": "array"}}}),
        ({"prefixItems": [{"type": "STRING"}, True]}, {"prefixItems": [{"type": "string"}, True]}),
        ({"additionalProperties": False}, {"additionalProperties": False}),
        ({"default": {"type": "STRING"}}, {"default": {"type": "STRING"}}),
        ({"type": "TYPE_UNSPECIFIED", "nullable": True}, {}),
        (True, True),
    ],
)
def test_one_keyword_at_a_time_becomes_json_schema(schema: Any, converted: Any) -> None:
    assert json_schema(schema) == converted


def test_a_wrapped_value_that_is_no_text_stays_wrapped() -> None:
    assert result_text({"result": [1.0, "a"]}) == '{"result":[1,"a"]}'
    assert result_text({"text": "a"}) == '{"text":"a"}'
