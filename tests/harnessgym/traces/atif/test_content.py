"""Messages as ATIF content and back: nothing that the policy wrote is lost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harnessgym.message import Message, ToolCall
from harnessgym.traces.atif import schema
from harnessgym.traces.atif.content import answer_of, content_of, message_of, tool_calls_of

TEXT = st.text(max_size=10)
ARGUMENTS = st.one_of(
    TEXT, st.just('{"a": 1}'), st.just('{"a":1}'), st.just("[1]"), st.just(""), st.just('{"é": "\\u00e9"}')
)
CALLS = st.builds(ToolCall, TEXT, st.text(min_size=1, max_size=5), ARGUMENTS)


@given(st.lists(CALLS, max_size=3))
def test_arguments_come_back_as_the_policy_wrote_them(calls):
    calls = tuple(calls)
    step = schema.AtifStep(
        step_id=1,
        source="agent",
        message="",
        tool_calls=tool_calls_of(Message("assistant", tool_calls=calls)),
    )
    assert answer_of(step).tool_calls == calls


@pytest.mark.parametrize(
    ("arguments", "value", "extra"),
    [
        ('{"a": 1}', {"a": 1}, None),
        ('{"a":1}', {"a": 1}, {"text": '{"a":1}'}),
        ("[1]", {}, {"text": "[1]"}),
        ("{}", {}, None),
        ("", {}, {"text": ""}),
    ],
)
def test_the_text_is_kept_only_where_the_object_does_not_give_it(arguments, value, extra):
    (call,) = tool_calls_of(Message("assistant", tool_calls=(ToolCall("1", "f", arguments),)))
    assert (call.arguments, call.extra) == (value, extra)


def test_an_answer_without_tool_calls_has_none():
    assert tool_calls_of(Message("assistant", "hello")) is None


def test_a_text_is_its_own_content():
    assert content_of(Message("user", "hello")) == "hello"
    assert message_of("user", None) == Message("user", "")


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("https://x/a.PNG", "image/png"),
        ("https://x/a.webp", "image/webp"),
        ("https://x/a.gif", "image/gif"),
        ("https://x/a", "image/jpeg"),
        ("data:image/gif;base64,AAAA", "image/gif"),
        ("data:,AAAA", "image/png"),
        ("data:image/webp,AAAA", "image/webp"),
    ],
)
def test_images_follow_the_text_with_their_media_type(url, kind):
    message = Message("user", "look", images=(url,))
    text, image = content_of(message)
    assert (text.text, image.source.media_type) == ("look", kind)
    assert message_of("user", [text, image]) == message


def test_results_keep_their_id_and_name():
    message = message_of("tool", "out", tool_call_id="7", extra={"name": "read", "other": 1})
    assert (message.tool_call_id, message.name) == ("7", "read")
