"""Items of the Responses protocol as messages."""

import json
from typing import Any

import pytest

from harnessgym.message import Message, ToolCall
from proxies.dialect import RequestProblem
from proxies.dialects.body import Fields
from proxies.dialects.responses.answer import seal
from proxies.dialects.responses.input import InputConversation, read_input


def conversation(*items: dict[str, Any]) -> InputConversation:
    return read_input(Fields({"input": list(items)}))


def messages(*items: dict[str, Any]) -> list[Message]:
    return list(conversation(*items).messages)


def answer(text: str, **fields: Any) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": text, **fields}


def call(call_id: str, **fields: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": "f", "arguments": "{}", **fields}


def output(call_id: str, text: Any = "ok") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": text}


def test_an_input_may_be_absent_or_one_text() -> None:
    assert list(read_input(Fields({})).messages) == []
    assert list(read_input(Fields({"input": "Hi"})).messages) == [Message("user", "Hi")]


@pytest.mark.parametrize(
    ("item", "kind", "message"),
    [
        (
            {"role": "tool", "content": "x"},
            "malformed",
            "input[0].role: 'tool' is not one of 'user', 'system'",
        ),
        ({"content": "x"}, "malformed", "input[0].role: Field required"),
        ({"role": "user"}, "malformed", "input[0].content: Field required"),
        ({"type": "item_reference", "id": "msg_1"}, "malformed", "Item with id 'msg_1' not found"),
        ({"type": "mcp_call"}, "unsupported", "input[0].type: 'mcp_call' items are not supported"),
        (
            {"role": "user", "content": [{"type": "input_audio"}]},
            "unsupported",
            "input[0].content[0].type: 'input_audio' content is not supported",
        ),
        (
            {"role": "user", "content": [{"type": "input_image", "file_id": "f"}]},
            "unsupported",
            "input[0].content[0].file_id: uploaded files are not supported",
        ),
        (
            {"role": "user", "content": [{"type": "input_image"}]},
            "malformed",
            "input[0].content[0].image_url: Field required",
        ),
        (
            answer("", content=[{"type": "input_image", "image_url": "https://host/a"}]),
            "unsupported",
            "images of the assistant are not supported",
        ),
        ({"type": "function_call", "name": "f"}, "malformed", "input[0].call_id: Field required"),
        ({"type": "function_call", "call_id": "c"}, "malformed", "input[0].name: Field required"),
        (
            {"type": "custom_tool_call", "call_id": "c", "name": "f"},
            "malformed",
            "input[0].input: Field required",
        ),
        ({"type": "function_call_output", "output": "x"}, "malformed", "input[0].call_id: Field required"),
        (
            {"type": "reasoning", "encrypted_content": "gAAAA"},
            "malformed",
            "input[0].encrypted_content: The encrypted content could not be verified",
        ),
    ],
)
def test_a_bad_item_is_refused_with_its_place(item: dict[str, Any], kind: str, message: str) -> None:
    with pytest.raises(RequestProblem) as caught:
        conversation(item)
    assert caught.value.problem.kind == kind
    assert message in caught.value.problem.message


@pytest.mark.parametrize(
    ("role", "expected"), [("user", "user"), ("system", "system"), ("developer", "system")]
)
def test_developers_speak_as_the_system(role: str, expected: str) -> None:
    assert [message.role for message in messages({"role": role, "content": "x"})] == [expected]


def test_parts_of_a_user_are_lines_and_those_of_an_answer_are_joined() -> None:
    parts = [{"type": "input_text", "text": "a"}, {"type": "text", "text": "b"}]
    assert messages({"role": "user", "content": parts}) == [Message("user", "a\nb")]
    written = [{"type": "output_text", "text": "a"}, {"type": "refusal", "refusal": "No."}]
    assert messages(answer("", content=written)) == [Message("assistant", "aNo.")]


def test_an_answer_may_have_no_content() -> None:
    assert messages({"role": "assistant"}) == [Message("assistant")]


def test_the_items_of_one_answer_are_one_message() -> None:
    reasoning = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "Hm."}]}
    (message,) = messages(reasoning, answer("Yes."), call("c1"), call("c2"))
    assert (message.reasoning, message.content) == ("Hm.", "Yes.")
    assert [made.id for made in message.tool_calls] == ["c1", "c2"]


def test_two_messages_in_a_row_are_two_answers() -> None:
    assert messages(answer("a"), answer("b")) == [Message("assistant", "a"), Message("assistant", "b")]


def test_a_result_ends_an_answer_whose_items_have_no_ids() -> None:
    read = messages(call("c1"), output("c1"), call("c2"), output("c2"))
    assert [message.role for message in read] == ["assistant", "tool", "assistant", "tool"]


def test_ids_keep_an_answer_together_around_a_result() -> None:
    first, second = call("c1", id="fc_abc_0"), call("c2", id="fc_abc_1")
    read = messages(first, output("c1"), second, output("c2"))
    assert [message.role for message in read] == ["assistant", "tool", "tool"]
    assert [made.id for made in read[0].tool_calls] == ["c1", "c2"]


def test_ids_keep_two_answers_apart() -> None:
    read = messages(call("c1", id="fc_abc_0"), call("c2", id="fc_def_0"))
    assert [len(message.tool_calls) for message in read] == [1, 1]


def test_a_user_ends_an_answer_whatever_the_ids_are() -> None:
    user = {"role": "user", "content": "Go on."}
    read = messages(answer("a", id="msg_abc_0"), user, call("c1", id="fc_abc_0"))
    assert [message.role for message in read] == ["assistant", "user", "assistant"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [('{"x": 1}', '{"x": 1}'), ("not json", "not json"), ("", "{}"), (None, "{}"), ({"ü": 1}, '{"ü": 1}')],
)
def test_the_arguments_of_a_call(arguments: Any, text: str) -> None:
    (message,) = messages(call("c", arguments=arguments))
    assert message.tool_calls == (ToolCall("c", "f", text),)


def test_the_input_of_a_custom_tool_is_its_one_argument() -> None:
    item = {"type": "custom_tool_call", "call_id": "c", "name": "sh", "input": 'echo "ä"'}
    (message,) = messages(item)
    assert message.tool_calls[0].parsed == {"input": 'echo "ä"'}
    (raw,) = messages(item | {"id": "ctc_abc_0r"})
    assert raw.tool_calls[0].arguments == 'echo "ä"'


def test_a_call_in_a_namespace_has_the_flat_name() -> None:
    (message,) = messages(call("c", namespace="crm"))
    assert message.tool_calls[0].name == "crm__f"


def test_an_output_may_have_parts_and_images() -> None:
    parts = [
        {"type": "output_text", "text": "a"},
        {"type": "input_image", "image_url": "https://host/a.png"},
        {"type": "input_text", "text": "b"},
    ]
    (message,) = messages(output("c", parts))
    assert message == Message("tool", "a\nb", tool_call_id="c", images=("https://host/a.png",))


@pytest.mark.parametrize(
    ("item", "text"),
    [
        ({"encrypted_content": seal("exact\n")}, "exact\n"),
        ({"encrypted_content": seal("exact"), "summary": [{"text": "short"}]}, "exact"),
        ({"encrypted_content": seal("")}, ""),
        ({"content": [{"text": "a"}, {"text": "b"}], "summary": [{"text": "short"}]}, "ab"),
        ({"summary": [{"text": "one"}, {"text": "two"}]}, "one\n\ntwo"),
        ({"encrypted_content": "gAAAA", "summary": [{"text": "short"}]}, "short"),
        ({}, ""),
    ],
)
def test_reasoning_is_the_exact_one_where_the_client_kept_it(item: dict[str, Any], text: str) -> None:
    (message,) = messages({"type": "reasoning", **item})
    assert message.reasoning == text


def test_equal_inputs_share_an_identity_however_they_are_written() -> None:
    item = {"role": "user", "content": "x", "weight": {"a": 1, "b": "ä"}}
    shuffled = json.loads('{"weight": {"b": "\\u00e4", "a": 1}, "content": "x", "role": "user"}')
    assert conversation(item).identity == conversation(shuffled).identity
    assert conversation(item).identity != conversation(item | {"content": "y"}).identity
    assert conversation(item, item).identity != conversation(item).identity
