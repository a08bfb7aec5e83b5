"""What holds for every grammar: any split of the tokens parses alike, and what a family's template writes is
read back.
"""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harnessgym.message import Message, ToolCall
from proxies.dialect import ReasoningDelta, TextDelta, ToolCallDelta
from proxies.parsers.choice import GRAMMARS
from tests.proxies.parsers.families import FAMILIES, Family, renderer, tokenizer
from tests.proxies.parsers.turns import FIND, encode, parse, said, written

EVERY = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
_ODD = [
    "<think>", "</think>", "<tool_call>", "</tool_call>", "<tool", "_call>", "</", "<", "<|", "[", "{", "\n", "\n\n",
    " ", "Hi", "a < b", "é", "🎉 été", '{"name": "f"', "[f(", "\ufffd", "<|im_start|>", "assistant", " to=functions.f",
]  # fmt: skip


def test_every_grammar_has_a_family() -> None:
    assert {family.grammar for family in FAMILIES} == set(GRAMMARS)


def fragments(family: Family) -> list[str]:
    """Markup of the family, whole, damaged and in pieces."""
    whole = renderer(family).decode(written(family, Message("assistant", "", tool_calls=(FIND,)))[0])
    half = len(whole) // 2
    cuts = [whole, whole[:half], whole[half:], whole.replace('"', "", 1), whole.replace("find", "")]
    return [*_ODD, *family.tokens, *family.tags, *cuts]


@st.composite
def turns(draw: st.DrawFn, family: Family) -> list[int]:
    """Ids of a turn: markup in any order, tokenised in any way, with arbitrary tokens in between."""
    ids: list[int] = []
    pieces = st.one_of(st.sampled_from(fragments(family)), st.text(max_size=4))
    for fragment in draw(st.lists(pieces, max_size=8)):
        cut = draw(st.integers(0, len(fragment)))
        ways = [
            encode(family, fragment),
            encode(family, fragment[:cut], fragment[cut:]),
            encode(family, *fragment),
        ]
        ids += draw(st.sampled_from(ways))
        ids += draw(st.lists(st.integers(0, tokenizer(family).get_vocab_size() - 1), max_size=1))
    return ids


@pytest.mark.parametrize(
    "family", {family.grammar: family for family in FAMILIES}.values(), ids=lambda family: family.grammar
)
@settings(max_examples=60, deadline=None)
@given(data=st.data(), in_reasoning=st.booleans(), tools=st.booleans())
def test_any_split_parses_as_the_whole(
    family: Family, data: st.DataObject, in_reasoning: bool, tools: bool
) -> None:
    ids = data.draw(turns(family))
    cuts = data.draw(st.lists(st.integers(0, len(ids)), max_size=10))
    options = {"in_reasoning": in_reasoning, "tools": tools}
    whole = parse(family, ids, **options)
    assert parse(family, ids, cuts, **options) == whole
    assert parse(family, ids, range(len(ids)), **options) == whole
    deltas, message, _, reasoning_tokens = whole
    assert "".join(delta.text for delta in deltas if isinstance(delta, TextDelta)) == message.content
    assert "".join(delta.text for delta in deltas if isinstance(delta, ReasoningDelta)) == message.reasoning
    assert [delta.call for delta in deltas if isinstance(delta, ToolCallDelta)] == list(message.tool_calls)
    assert reasoning_tokens <= len(ids)
    assert bool(reasoning_tokens) >= bool(message.reasoning)
    assert tools or not message.tool_calls
    # What is said can be written and hashed.
    assert message.digest
    json.dumps([call.parsed for call in message.tool_calls], allow_nan=False).encode()
    assert all(isinstance(call.parsed, dict) for call in message.tool_calls)


def texts(family: Family) -> st.SearchStrategy[str]:
    return st.text(
        st.characters(exclude_characters=family.unquotable, exclude_categories=["Cs", "Cc"]), max_size=12
    )


def arguments(family: Family) -> st.SearchStrategy[dict[str, Any]]:
    simple = st.one_of(st.integers(-999, 999), st.booleans(), texts(family))
    of_kind: dict[str, st.SearchStrategy[Any]] = {
        "name": st.one_of(texts(family), st.sampled_from(["3", "true", "None", "null", "1.5", "red lamp"])),
        "count": st.integers(-(2**40), 2**40),
        "ratio": st.one_of(st.none(), st.floats(-9, 9, allow_nan=False)),
        "flag": st.booleans(),
        "items": st.lists(simple, max_size=3),
        "deep": st.dictionaries(st.sampled_from(["of", "at"]), simple, max_size=2),
    }
    return st.fixed_dictionaries({}, optional={name: of_kind[name] for name in family.values})


@st.composite
def messages(draw: st.DrawFn, family: Family) -> Message:
    """Turns that the template can write."""
    calls = draw(st.lists(arguments(family), max_size=3 if family.several else 1))
    made = tuple(
        ToolCall(f"call_x_{index}", "find", json.dumps(each, ensure_ascii=False))
        for index, each in enumerate(calls)
    )
    # What templates trim at its ends is left out.
    visible = texts(family).map(str.strip).filter(lambda text: text and text[0] not in "[{")
    content = draw(visible) if family.says_with_calls or not made else ""
    maybe = visible if family.reasons_always else st.one_of(st.just(""), visible)
    reasoning = draw(maybe) if family.reasons else ""
    return Message("assistant", content, reasoning=reasoning, tool_calls=made)


@EVERY
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_what_the_template_writes_is_read_back(family: Family, data: st.DataObject) -> None:
    turn = data.draw(messages(family))
    ids, in_reasoning = written(family, turn)
    _, parsed, unparsed, reasoning_tokens = parse(family, ids, range(len(ids)), in_reasoning=in_reasoning)
    assert said(parsed) == said(turn)
    assert unparsed == 0 or not in_reasoning
    assert reasoning_tokens >= (len(turn.reasoning.encode()) > 0)
    # Rendered again it gives the same tokens.
    assert written(family, parsed)[0] == ids


@EVERY
def test_a_call_that_is_cut_off_is_text(family: Family) -> None:
    ids, in_reasoning = written(family, Message("assistant", "", tool_calls=(FIND,)))
    at = len(renderer(family).decode(ids).partition("red lamp")[0])
    text = renderer(family).decode(ids)[: at + 3]
    cut = encode(family, text)
    _, message, unparsed, _ = parse(family, cut, range(len(cut)), in_reasoning=in_reasoning)
    assert not message.tool_calls
    assert unparsed >= 1
    assert text.endswith(message.content)
    assert message.content.endswith("red")


@EVERY
def test_without_tools_calls_are_text(family: Family) -> None:
    ids, in_reasoning = written(family, Message("assistant", "", tool_calls=(FIND,)))
    _, message, unparsed, _ = parse(family, ids, in_reasoning=in_reasoning, tools=False)
    assert not message.tool_calls
    assert "red lamp" in message.content
    assert unparsed == 0 or "think" in renderer(family).decode(ids)
