"""Templates get messages in the form that they take, which is found by trying."""

from typing import Any

import pytest

from harnessgym.message import Message, ToolCall
from proxies.renderers.message_form import MessageForm
from tests.proxies.parsers.families import FAMILIES, renderer

BY_NAME = {family.name: family for family in FAMILIES}
CALL = {"id": "call_0123_0", "type": "function", "function": {"name": "find", "arguments": {"a": [1, True]}}}
CALLED: dict[str, Any] = {
    "role": "assistant",
    "content": "Hi.",
    "reasoning_content": "hm",
    "tool_calls": [CALL],
}
RESULT: dict[str, Any] = {"role": "tool", "content": "A lamp.", "tool_call_id": "call_0123_0"}


def test_usual_messages_are_left_as_they_are() -> None:
    assert MessageForm().apply([CALLED, RESULT]) == [CALLED, RESULT]


def test_forms() -> None:
    called, result = MessageForm(text_arguments=True, short_ids=True).apply([CALLED, RESULT])
    (call,) = called["tool_calls"]
    assert call["function"]["arguments"] == '{"a": [1, true]}'
    assert call["id"] == result["tool_call_id"]
    assert len(call["id"]) == 9
    assert call["id"].isalnum()
    called, result = MessageForm(named_ids=True).apply(
        [{**CALLED, "tool_calls": [CALL, {**CALL, "id": "b"}]}, RESULT]
    )
    assert [call["id"] for call in called["tool_calls"]] == ["functions.find:0", "functions.find:1"]
    assert result["tool_call_id"] == "functions.find:0"
    (called,) = MessageForm(thinking=True).apply([CALLED])
    assert (called["thinking"], "reasoning_content" in called) == ("hm", False)
    (called,) = MessageForm(thinking=True, either=True).apply([CALLED])
    assert "thinking" not in called
    assert CALLED["tool_calls"] == [CALL]
    assert CALLED["reasoning_content"] == "hm"


def test_a_later_system_message_becomes_the_users() -> None:
    said = [
        ("system", "A."),
        ("system", "B."),
        ("user", "C."),
        ("system", "D."),
        ("assistant", "E."),
        ("system", "F."),
    ]
    messages = [{"role": role, "content": content} for role, content in said]
    assert MessageForm().apply(messages) == messages
    assert [tuple(message.values()) for message in MessageForm(one_system=True).apply(messages)] == [
        ("system", "A.\n\nB."), ("user", "C."), ("user", "D."), ("assistant", "E."), ("user", "F.")
    ]  # fmt: skip


REMINDED = [Message("system", "A."), Message("user", "B."), Message("system", "Reminder one.")]
"""Claude Code's reminders are system messages behind the user's, and behind results of tools."""


@pytest.mark.parametrize("name", ["qwen3.5", "gpt-oss"])
def test_a_reminder_is_neither_refused_nor_left_out(name: str) -> None:
    family = renderer(BY_NAME[name])
    assert "Reminder one." in family.decode(family.render(REMINDED, ()).whole())


def test_a_turn_is_continued_with_a_reminder() -> None:
    family = renderer(BY_NAME["qwen3.5"])
    turn = family.write(Message("assistant", "C."))
    assert turn is not None
    prompt = family.render(REMINDED, ()).whole()
    suffix = family.extend([*prompt, *turn], [Message("user", "D."), Message("system", "Reminder two.")], ())
    assert suffix is not None
    assert "Reminder two." in family.decode(suffix)


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("qwen3", MessageForm()),
        ("deepseek-v3", MessageForm(text_arguments=True)),
        ("mistral-v3", MessageForm(short_ids=True)),
        ("kimi-k2", MessageForm(named_ids=True)),
        ("qwen3.5", MessageForm(one_system=True)),
        ("gpt-oss", MessageForm(thinking=True, either=True, one_system=True)),
        ("lfm2.5", MessageForm(thinking=True)),
    ],
)
def test_the_form_of_a_template(name: str, form: MessageForm) -> None:
    family = renderer(BY_NAME[name])

    def fill(messages: Any) -> str:
        return str(
            family._template.render(
                **family.tokens, messages=messages, tools=None, add_generation_prompt=False
            )
        )

    assert MessageForm.of(family.source, fill) == form


@pytest.mark.parametrize(
    ("name", "calls", "result"),
    [
        ("lfm2", "<|im_end|>", "<|im_end|>"),
        ("mistral-v3", "</s>", "</s>"),
        ("gpt-oss", "<|call|>", "<|return|>"),
    ],
)
def test_a_turn_with_calls_ends_behind_them(name: str, calls: str, result: str) -> None:
    """The tags of calls are special tokens too, but none of them ends a turn."""
    family = renderer(BY_NAME[name])
    ends = {family.decode([token]) for token in family.stop_token_ids}
    assert ends == {calls, result}


def test_a_template_that_takes_both_reads_both() -> None:
    turn = Message("assistant", "Hi.", reasoning="hm", tool_calls=(ToolCall("a", "find", "{}"),))
    text = renderer(BY_NAME["lfm2.5"]).text([Message("user", "a"), turn], generate=False)
    assert "<think>hm</think>Hi." in text
