"""Classes of breaks, from messages and texts alone."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harnessgym.message import Message, ToolCall, ToolSpec
from harnessgym.traces.diagnosis import CallConversation, diagnose, diagnose_rendering
from harnessgym.traces.difference import common_ends, difference, only_volatile, without_volatile

TOOLS = (ToolSpec("find", "Find."),)
SYSTEM, ASKED = (
    Message("system", "You are a careful agent."),
    Message("user", "What is the price of the lamp?"),
)
CALLED = Message("assistant", "Looking.", tool_calls=(ToolCall("c", "find", '{"name": "lamp", "limit": 1}'),))
FOUND, SAID = (
    Message("tool", "Q7", tool_call_id="c"),
    Message("assistant", "It is 47.", reasoning="Q7 costs 47."),
)


def earlier(
    *messages: Message, answer: Message | None = None, call: str = "one", tools: tuple[ToolSpec, ...] = TOOLS
) -> CallConversation:
    return CallConversation(call, messages, tools, answer)


LONG = earlier(SYSTEM, ASKED, CALLED, FOUND, answer=SAID)


def kind(
    *messages: Message, known: tuple[CallConversation, ...] = (LONG,), tools: tuple[ToolSpec, ...] = TOOLS
) -> str | None:
    found = diagnose(messages, tools, known)
    return None if found is None else found.kind


def test_nothing_to_compare_with_is_no_break() -> None:
    assert kind(SYSTEM, ASKED, known=()) is None


@pytest.mark.parametrize("length", range(1, 6))
def test_the_beginning_of_a_conversation_is_no_break(length: int) -> None:
    assert kind(*LONG.whole[:length]) is None


def test_the_detail_names_message_and_call() -> None:
    found = diagnose((SYSTEM, Message("user", "What is the price of the chair?"), CALLED), TOOLS, [LONG])
    assert found is not None
    assert found.kind == "edited_history"
    first, *hunk = found.detail.split("\n")
    assert first == "message 1 (user), compared with call one: the user message has changed"
    assert hunk == [
        "@@ -25,4 +25,5 @@",
        "-What is the price of the lamp?",
        "+What is the price of the chair?",
    ]


def test_the_conversation_that_shares_most_is_compared() -> None:
    other = earlier(SYSTEM, Message("user", "Hi."), answer=Message("assistant", "Hello."), call="two")
    found = diagnose((SYSTEM, ASKED, CALLED, Message("tool", "Q8"), SAID), TOOLS, [other, LONG])
    assert found is not None
    assert "message 3 (tool), compared with call one" in found.detail


def test_of_equal_ones_the_most_alike_is_compared() -> None:
    near = earlier(Message("system", "You are a careful agent. Now: 10:31."), ASKED, call="near")
    far = earlier(Message("system", "Write titles."), ASKED, call="far")
    found = diagnose((Message("system", "You are a careful agent. Now: 10:35."), ASKED), TOOLS, [far, near])
    assert found is not None
    assert found.kind == "nonce"
    assert "call near" in found.detail


@pytest.mark.parametrize(
    "answer",
    [
        SAID,
        Message("assistant", " It is 47.\n"),
        Message("assistant", "It is 47.", reasoning="Q7 costs 47."),
        Message("assistant", "<think>\nQ7 costs 47.\n</think>\nIt is 47."),
    ],
)
def test_an_answer_in_a_permitted_form_is_no_break(answer: Message) -> None:
    assert kind(*LONG.messages, answer) is None


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (Message("assistant", "It is 47.", reasoning="Q7"), "stripped_reasoning"),
        (Message("assistant", "It is 47.", reasoning="No idea."), "edited_history"),
        (Message("assistant", "It is 48."), "edited_history"),
    ],
)
def test_changed_answers(answer: Message, expected: str) -> None:
    assert kind(*LONG.messages, answer, Message("user", "Sure?")) == expected


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"limit":1.0,"name":"lamp"}', None),
        ('{"name": "lamp"}', "tool_reserialisation"),
        ('{"name": "lamp", "limit": "1"}', "tool_reserialisation"),
        ("{'name': 'lamp', 'limit': 1}", "tool_reserialisation"),
        ('{"name": "chair", "limit": 1}', "edited_history"),
        ('{"name": "lamp", "limit": 2}', "edited_history"),
    ],
)
def test_changed_arguments(arguments: str, expected: str | None) -> None:
    call = Message("assistant", "Looking.", tool_calls=(ToolCall("c", "find", arguments),))
    assert kind(SYSTEM, ASKED, call, FOUND) == expected


def test_an_answer_in_flight_is_not_held_against_a_request() -> None:
    asked = earlier(SYSTEM, ASKED)
    assert kind(SYSTEM, ASKED, known=(asked,)) is None
    assert kind(SYSTEM, ASKED, SAID, Message("user", "Sure?"), known=(asked,)) == "edited_history"


CODER, CODE = Message("system", "You write code."), (ToolSpec("shell", "Run."),)
TAKEN = (CODER, *LONG.messages[1:], SAID)


@pytest.mark.parametrize(
    ("opening", "tools", "why"),
    [
        ((CODER,), TOOLS, "another system prompt"),
        ((CODER,), (), "another system prompt, other tools: -find"),
        ((), TOOLS, "another system prompt"),
        ((CODER, Message("system", "Be quick.")), TOOLS, "another system prompt"),
    ],
)
@pytest.mark.parametrize("more", [(), (Message("user", "Go on."),)])
def test_another_agent_that_goes_on_with_the_history_is_a_handoff(
    opening: tuple[Message, ...], tools: tuple[ToolSpec, ...], why: str, more: tuple[Message, ...]
) -> None:
    found = diagnose((*opening, *LONG.whole[1:], *more), tools, [earlier(SYSTEM, TASK, call="other"), LONG])
    assert found is not None
    assert found.kind == "handoff"
    assert f"call one: another agent continues its history: {why}" in found.detail.split("\n")[0]


TASK = Message("user", "Something else.")


@pytest.mark.parametrize(
    ("messages", "tools", "expected"),
    [
        ((CODER, ASKED, CALLED, Message("tool", "Q8"), SAID), TOOLS, "edited_history"),
        ((CODER, Message("user", "What?"), CALLED, FOUND, SAID), TOOLS, "edited_history"),
        ((CODER, ASKED), TOOLS, "sub_agent"),
        ((CODER, TASK), CODE, "sub_agent"),
        (LONG.whole, (ToolSpec("find", "Find it."),), "edited_history"),
        (LONG.whole, CODE, "edited_history"),
        (LONG.whole, (*TOOLS, *CODE), "edited_history"),
        ((*LONG.messages, Message("assistant", "It is 48.")), CODE, "edited_history"),
        ((*TAKEN, Message("user", "Write a summary of it.")), (), "compaction"),
        ((*TAKEN, Message("user", "Write a summary of it.")), CODE, "handoff"),
    ],
    ids=[
        "result",
        "question",
        "no answer",
        "other task",
        "description",
        "tools",
        "one more tool",
        "answer",
        "summary",
        "coder's summary",
    ],
)
def test_what_is_near_a_handoff(
    messages: tuple[Message, ...], tools: tuple[ToolSpec, ...], expected: str
) -> None:
    assert kind(*messages, tools=tools) == expected


def test_a_date_that_changed_is_no_other_agent() -> None:
    dated = [
        replace(SYSTEM, content=f"{SYSTEM.content} Today is {day}.")
        for day in ("Monday, 3 March", "Friday, 7 March")
    ]
    known = earlier(dated[0], *LONG.messages[1:], answer=SAID)
    assert kind(dated[1], *TAKEN[1:], known=(known,)) == "nonce"
    coder = earlier(
        CODER, *LONG.whole[1:], TASK, answer=Message("assistant", "Done."), call="coder", tools=CODE
    )
    assert kind(dated[1], *TAKEN[1:], TASK, known=(coder, known)) == "nonce"


def test_an_agent_that_gets_the_conversation_back_is_handed_it() -> None:
    back = Message("assistant", "", tool_calls=(ToolCall("d", "give_back", "{}"),))
    coder = earlier(*TAKEN, TASK, answer=back, call="coder", tools=CODE)
    request = (SYSTEM, *TAKEN[1:], TASK, back, Message("tool", "Back."))
    found = diagnose(request, TOOLS, [coder, LONG])
    assert found is not None
    assert found.kind == "handoff"
    assert "compared with call coder" in found.detail
    assert (
        kind(SYSTEM, *TAKEN[1:], TASK, Message("assistant", "Mine."), known=(coder, LONG)) == "edited_history"
    )


@pytest.mark.parametrize(("turns", "expected"), [(0, "edited_history"), (1, "handoff"), (None, "handoff")])
def test_examples_that_agents_share_are_no_history(turns: int | None, expected: str) -> None:
    known = replace(LONG, turns=turns)
    assert kind(CODER, ASKED, CALLED, FOUND, known=(known,)) == expected
    assert kind(CODER, *LONG.whole[1:], known=(known,)) == "handoff"


def test_a_summary_needs_a_longer_conversation() -> None:
    summary = Message("user", "Summary of the conversation so far: it is 47. Go on.")
    assert kind(SYSTEM, summary) == "compaction"
    assert kind(SYSTEM, summary, known=(earlier(SYSTEM, ASKED, answer=SAID),)) == "new_root"
    assert kind(Message("system", "You write titles."), summary) == "sub_agent"


def test_what_follows_a_call_without_tools_is_a_compaction() -> None:
    asking = earlier(
        *LONG.whole,
        Message("user", "Sum it up."),
        answer=Message("assistant", "Lamp: 47."),
        call="two",
        tools=(),
    )
    assert kind(SYSTEM, Message("user", "State: lamp 47."), known=(asking, LONG)) == "compaction"
    assert kind(SYSTEM, Message("user", "State: lamp 47."), known=(LONG,)) == "new_root"


@pytest.mark.parametrize(
    ("old", "new", "volatile"),
    [
        ("Today is Monday, 3 March 2025. Be careful.", "Today is Tuesday, 4 March 2025. Be careful.", True),
        ("Session 0f3a9c1e-77aa: go on with the work.", "Session 9b1d22f0-18bc: go on with the work.", True),
        ("It is 9:59 now, and you have work to do.", "It is 10:00 now, and you have work to do.", True),
        ("turn 9 of the game", "turn 10 of the game", True),
        ("The door is open.", "The door is shut.", False),
        ("47", "48", False),
        ("same", "same", False),
        ("a b", "a  b", False),
        ("Today is Monday. The door is open.", "Today is Tuesday. The door is shut.", False),
    ],
)
def test_volatile_texts(old: str, new: str, volatile: bool) -> None:
    assert only_volatile(old, new) is volatile


@pytest.mark.parametrize(
    ("text", "stays"),
    [
        ("Today is Monday, 3 March 2025, 10:31 PM.", "Today is 0."),
        ("at 2025-03-04T10:00:00.123+01:00 sharp", "at 0 sharp"),
        ("id 1B4E28BA-abcd-abcd-abcd-aabbccddeeff, deadbeef", "id 0"),
        ("1,234 files\n\n  in 2 folders", "0 files in 0 folders"),
        ("cwd: /a/b\n<cwd>/a/b</cwd>", "cwd: 0 <cwd>0</cwd>"),
        ("Current working directory is ~/x. Go.", "Current working directory is 0 Go."),
        ("Read /etc/rules, then https://a.org/b.", "Read /etc/rules, then https://a.org/b."),
        ("Write to /tmp/xyz/out.", "Write to 0"),
    ],
)
def test_what_stays_of_a_text(text: str, stays: str) -> None:
    assert without_volatile(text) == stays


@given(st.text())
def test_what_stays_of_a_text_stays(text: str) -> None:
    assert without_volatile(without_volatile(text)) == without_volatile(text)


SAMPLED = "<think>\nhm\n</think>\n\nLook.\n<tool_call>\n{}\n</tool_call><|im_end|>"
ANSWER = Message("assistant", "Look.", "hm", (ToolCall("c", "f", "{}"),))


@pytest.mark.parametrize(
    ("rendered", "expected"),
    [
        (SAMPLED + "\n<|im_start|>user", "bpe_drift"),
        (SAMPLED.split("\n\n")[1], "stripped_reasoning"),
        (SAMPLED.replace("<think>\nhm\n", "<think>\n"), "stripped_reasoning"),
        (SAMPLED.replace("{}", "{ }"), "tool_reserialisation"),
        (SAMPLED.replace("\n<tool_call>", "<tool_call>"), "tool_reserialisation"),
        (SAMPLED.replace("Look.", "Look "), "template"),
    ],
)
def test_what_a_template_writes(rendered: str, expected: str) -> None:
    assert diagnose_rendering(SAMPLED, rendered, ANSWER)[0] == expected


def test_reasoning_that_says_nothing_is_reasoning() -> None:
    sampled = "<think>\n\n</think>\n\n47<|im_end|>"
    assert (
        diagnose_rendering(sampled, "47<|im_end|>\n", Message("assistant", "47"))[0] == "stripped_reasoning"
    )


@given(st.text(), st.text(), st.text(), st.text())
def test_a_difference_is_short_and_finds_what_is_common(head: str, old: str, new: str, tail: str) -> None:
    one, other = head + old + tail, head + new + tail
    start, end = common_ends(one, other)
    assert start >= len(head) or one == other
    assert one[:start] == other[:start]
    assert start + end <= min(len(one), len(other))
    assert one[len(one) - end :] == other[len(other) - end :]
    assert len(difference(one, other)) <= 600
    assert difference(one, other).count("\n") == 2


def test_a_difference_of_long_texts_is_short() -> None:
    assert len(difference("\n" * 5_000, "x\\" * 5_000)) <= 600


MESSAGES = st.builds(
    Message,
    st.sampled_from(["system", "user", "assistant", "tool"]),
    st.text(st.sampled_from("ab 1"), max_size=4),
    st.sampled_from(["", "r"]),
    st.lists(
        st.builds(ToolCall, st.just("c"), st.just("f"), st.sampled_from(["{}", '{"a": 1}', "x"])), max_size=2
    ).map(tuple),
)


@given(
    st.lists(MESSAGES, min_size=1, max_size=6),
    st.lists(st.lists(MESSAGES, min_size=1, max_size=6), max_size=3),
    st.sampled_from([(), TOOLS]),
)
def test_any_request_has_a_class_or_begins_an_earlier_one(
    messages: list[Message], others: list[list[Message]], tools: tuple[ToolSpec, ...]
) -> None:
    known = [CallConversation(f"c{number}", tuple(other), TOOLS, None) for number, other in enumerate(others)]
    found = diagnose(messages, tools, known)
    if found is None:
        forms = [
            [message.digest for message in conversation.messages[: len(messages)]] for conversation in known
        ]
        assert not known or any(len(form) == len(messages) for form in forms)
    else:
        assert len(found.detail) < 800
