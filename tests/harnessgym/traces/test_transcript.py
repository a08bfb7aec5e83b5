"""Messages in the chat format of exports: arguments stay text."""

from harnessgym.message import Message, ToolCall, ToolSpec
from harnessgym.traces.transcript import to_wire, tools_to_wire


def test_arguments_are_the_text_that_the_policy_wrote():
    message = Message("assistant", "", tool_calls=(ToolCall("1", "f", '{"a":1}'), ToolCall("2", "g", "x")))
    wire = to_wire(message)
    assert [call["function"]["arguments"] for call in wire["tool_calls"]] == ['{"a":1}', "x"]
    assert message.to_chat()["tool_calls"][0]["function"]["arguments"] == {"a": 1}


def test_a_result_always_has_an_id():
    assert to_wire(Message("tool", "out"))["tool_call_id"] == ""
    assert to_wire(Message("tool", "out", tool_call_id="7"))["tool_call_id"] == "7"
    assert "tool_call_id" not in to_wire(Message("user", "hello"))


def test_an_error_is_a_field_and_not_a_text():
    wire = to_wire(Message("tool", "no such file", tool_call_id="7", is_error=True))
    assert (wire["content"], wire["is_error"]) == ("no such file", True)


def test_tools_have_the_form_of_templates():
    (tool,) = tools_to_wire((ToolSpec("f", "does", {"type": "object"}),))
    assert tool == {
        "type": "function",
        "function": {"name": "f", "description": "does", "parameters": {"type": "object"}},
    }
    assert tools_to_wire(()) == []
