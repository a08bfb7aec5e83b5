import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harnessgym.message import (
    Message,
    Sampling,
    ToolCall,
    ToolSpec,
    canonical_json,
    chain_digests,
    context_digest,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def asking(arguments: str, call_id: str = "c1", name: str = "look_up") -> Message:
    return Message("assistant", tool_calls=(ToolCall(call_id, name, arguments),))


@given(st.dictionaries(st.text(max_size=5), JSON, max_size=4))
def test_a_digest_ignores_how_arguments_were_written(arguments):
    tight = json.dumps(arguments, separators=(",", ":"))
    loose = json.dumps(dict(reversed(arguments.items())), indent=2, ensure_ascii=False)
    assert asking(tight).digest == asking(loose).digest


def test_a_digest_ignores_ids_that_were_minted_on_the_way():
    assert asking("{}", "c1").digest == asking("{}", "toolu_9").digest
    assert Message("tool", "42", tool_call_id="c1").digest == Message("tool", "42", tool_call_id="x").digest
    assert Message("user", "hi", name="ann").digest == Message("user", "hi").digest


@pytest.mark.parametrize(
    "other",
    [
        Message("user", "a"),
        Message("assistant", "b"),
        Message("assistant", "a", reasoning="r"),
        Message("assistant", "a", tool_calls=(ToolCall("c", "f", "{}"),)),
        Message("assistant", "a "),
    ],
)
def test_a_digest_tells_what_is_said_apart(other):
    assert Message("assistant", "a").digest != other.digest


def test_calls_differ_by_name_arguments_and_order():
    one, two = ToolCall("1", "f", '{"x": 1}'), ToolCall("2", "g", '{"x": 1}')
    forms = [
        (one,),
        (two,),
        (one, two),
        (two, one),
        (ToolCall("1", "f", '{"x": 2}'),),
        (ToolCall("1", "f", '{"x"'),),
    ]
    assert len({Message("assistant", tool_calls=form).digest for form in forms}) == len(forms)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('{"x": 1.0}', '{"x":1}'),
        ('{"x": [2e3, -0.0]}', '{"x": [2000, 0]}'),
        ('{"x": 12345678901234567890}', '{"x": 12345678901234567000}'),
        ('{"x": 0.10}', '{"x": 0.1}'),
        ("{}", ""),
        ("{}", "null"),
    ],
)
def test_numbers_and_nothing_are_as_clients_of_any_language_write_them(one, other):
    assert asking(one).digest == asking(other).digest


@pytest.mark.parametrize(
    ("one", "other"), [("1", "2"), ("1", "true"), ("1", '"1"'), ("0", "null"), ("0.1", "0.2"), ("[]", "{}")]
)
def test_other_values_stay_apart(one, other):
    assert asking(f'{{"x": {one}}}').digest != asking(f'{{"x": {other}}}').digest


def test_arguments_nested_beyond_reason_stay_text():
    deep = '{"x": ' + "[" * 100_000
    assert ToolCall("1", "f", deep).parsed == deep
    assert asking(deep).digest != asking("{}").digest


def test_a_billing_line_is_no_part_of_what_is_said():
    lines = [f"x-anthropic-billing-header: cc_version=2.1; cch={nonce};\n\nBe brief." for nonce in ("a", "b")]
    one, two = (Message("system", line) for line in lines)
    assert one.digest == two.digest == Message("system", "Be brief.").digest
    assert one.without_nonce() == Message("system", "Be brief.")
    quoted = Message("user", lines[0])
    assert quoted.without_nonce() is quoted
    assert quoted.digest != Message("user", lines[1]).digest


def test_arguments_that_are_no_json_stay_text():
    assert ToolCall("1", "f", '{"x').parsed == '{"x'
    assert ToolCall("1", "f", '{"x": [1]}').parsed == {"x": [1]}


def test_templates_get_what_was_said_and_nothing_else():
    assert Message("user", "hi").to_template() == {"role": "user", "content": "hi"}
    full = Message("assistant", "a", "r", (ToolCall("1", "f", '{"x": 1}'), ToolCall("2", "g", "oops")))
    assert full.to_template() == {
        "role": "assistant",
        "content": "a",
        "reasoning_content": "r",
        "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}},
            {"id": "2", "type": "function", "function": {"name": "g", "arguments": "oops"}},
        ],
    }
    answer = Message("tool", "42", tool_call_id="1", name="f")
    assert answer.to_template() == {"role": "tool", "content": "42", "tool_call_id": "1", "name": "f"}


def test_a_tool_takes_the_openai_form():
    spec = ToolSpec("f", "Does f.", {"type": "object"})
    inner = {"name": "f", "description": "Does f.", "parameters": {"type": "object"}}
    assert spec.to_template() == {"type": "function", "function": inner}


def test_sampling_is_only_ever_limited():
    assert Sampling(max_tokens=100).limited(10).max_tokens == 10
    assert Sampling(max_tokens=100).limited(1000).max_tokens == 100
    assert Sampling(max_tokens=100).limited(None) == Sampling(max_tokens=100)


def test_a_context_is_its_tools():
    tools = (ToolSpec("f"), ToolSpec("g"))
    assert context_digest(tools) == context_digest((ToolSpec("f"), ToolSpec("g")))
    assert len({context_digest(()), context_digest(tools), context_digest(tools[::-1])}) == 3


MESSAGES = st.lists(
    st.builds(Message, st.sampled_from(["user", "assistant", "tool"]), st.text(max_size=3)), max_size=6
)


@given(MESSAGES, MESSAGES)
def test_equal_beginnings_and_only_those_have_equal_chains(left, right):
    one, other = chain_digests("c", tuple(left)), chain_digests("c", tuple(right))
    assert len(one) == len(left)
    for index in range(min(len(left), len(right))):
        same = [m.digest for m in left[: index + 1]] == [m.digest for m in right[: index + 1]]
        assert (one[index] == other[index]) == same


def test_the_context_enters_every_link():
    assert set(chain_digests("a", (Message("user"),))).isdisjoint(chain_digests("b", (Message("user"),)))


@given(JSON)
def test_canonical_json_is_json_of_the_same_value(value):
    assert json.loads(canonical_json(value)) == value
    assert canonical_json({"b": 1, "a": "ä"}) == '{"a":"ä","b":1}'


def test_a_failed_tool_says_so_to_the_policy_in_words():
    failed = Message("tool", "no such key", tool_call_id="c", is_error=True)
    assert failed.to_template() == {"role": "tool", "content": "Error: no such key", "tool_call_id": "c"}
    assert failed.to_chat() == {
        "role": "tool",
        "content": "no such key",
        "tool_call_id": "c",
        "is_error": True,
    }
    assert failed.digest != replace(failed, is_error=False).digest
    shown = replace(failed, images=("https://x/a.png",)).to_template()["content"]
    assert shown[0] == {"type": "text", "text": "Error: no such key"}


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        ("", "Error"),
        ("Exit code 1", "Error: Exit code 1"),
        ("errors: 0", "Error: errors: 0"),
        ("Error: no such key", "Error: no such key"),
        ("[ERROR] no such key", "[ERROR] no such key"),
        ("<tool_use_error>Unknown tool</tool_use_error>", "<tool_use_error>Unknown tool</tool_use_error>"),
    ],
)
def test_what_begins_with_the_word_error_is_left_as_it_is(content, shown):
    assert Message("tool", content, is_error=True).shown_text == shown
    assert Message("tool", content).shown_text == content
