import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from harnessgym.errors import ConfigError
from harnessgym.message import Message, ToolCall
from harnessgym.registry import load
from proxies.dialect import ReasoningDelta, TextDelta, ToolCallDelta
from proxies.language import ParsedDelta, PolicyLanguage
from proxies.parsers.hermes import HermesParser, read_call
from proxies.renderers.template import TemplateRenderer

POLICY = Path(__file__).parents[2] / "environments" / "lookup" / "policy"
RENDERER = TemplateRenderer.from_folder(POLICY)
TOKENIZER: Tokenizer = RENDERER.tokenizer
END = RENDERER.stop_token_ids[0]

FRAGMENTS = [
    "<think>", "</think>", "<tool_call>", "</tool_call>", "<tool", "_call>", "</", "<", "\n", "\n\n", " ", "Hi", "a < b", "é",
    "🎉 été",
    '<tool_call>\n{"name": "find", "arguments": {"name": "red lamp"}}\n</tool_call>',
    '<tool_call>{"arguments":{"x":[1,{"y":"🎉"}]},"name":"f"}</tool_call>',
    '<tool_call>\n{"name": "find", "arguments": "red"}\n</tool_call>',
    '<tool_call>\n{"name": "find", "arguments": {"name": }}\n</tool_call>',
    '<tool_call>\n{"name": "find"',
    "<think>\nhm\n</think>\n\n", "<|im_start|>", "\ufffd",
]  # fmt: skip


def encode(*pieces: str) -> list[int]:
    """Ids of pieces encoded apart, so that a tag cut in two is two runs of ordinary tokens."""
    return [token for piece in pieces for token in TOKENIZER.encode(piece, add_special_tokens=False).ids]


def parser(**options: object) -> HermesParser:
    return HermesParser(RENDERER.table, **{"call_prefix": "call_x_", "stop_token_ids": (END,), **options})


def parse(ids: list[int], cuts: list[int] = (), **options: object) -> tuple[list[ParsedDelta], Message, int]:
    """Merged deltas, the message and the count of a turn fed in chunks."""
    p, deltas, at = parser(**options), [], 0
    for cut in [*sorted(cuts), len(ids)]:
        deltas += p.feed(ids[at:cut])
        at = max(at, cut)
    return merged([*deltas, *p.flush()]), p.finish(), p.unparsed


def merged(deltas: list[ParsedDelta]) -> list[ParsedDelta]:
    out: list[ParsedDelta] = []
    for delta in deltas:
        if out and not isinstance(delta, ToolCallDelta) and type(out[-1]) is type(delta):
            out[-1] = type(delta)(out[-1].text + delta.text)
        else:
            out.append(delta)
    return out


def reference(text: str) -> tuple[str, str, list[tuple[str, object]], int]:
    """The parse of a whole text by plain string operations: content, reasoning, calls, unparsed."""
    reasoning, marked, after_think = "", False, False
    if re.match(r"\s*<think>", text):
        body, _, text = text.partition("<think>")[2].partition("</think>")
        reasoning, marked, after_think = body.strip("\n"), True, True
    calls, stretch, content, unparsed = [], "", "", 0
    rest = re.split(
        r"(<tool_call>.*?</tool_call>|<tool_call>.*\Z|</?think>|</tool_call>)", text, flags=re.DOTALL
    )

    def close(stretch: str, *, at_call: bool) -> str:
        if not stretch.strip() and (at_call or marked):
            return ""
        stretch = stretch.lstrip("\n") if after_think else stretch
        return stretch.removesuffix("\n") if at_call else stretch

    for index, piece in enumerate(rest):
        call = None
        if index % 2:
            if piece.startswith("<tool_call>") and piece.endswith("</tool_call>"):
                call = read_call(piece.removeprefix("<tool_call>").removesuffix("</tool_call>"), "")
            unparsed += call is None
        if call is None:
            stretch += piece
            continue
        content += close(stretch, at_call=True)
        stretch, marked, after_think = "", True, False
        calls.append((call.name, call.parsed))
    return content + close(stretch, at_call=False), reasoning, calls, unparsed


@st.composite
def turns(draw: st.DrawFn) -> list[int]:
    """Ids of a turn: markup in any order, tokenised in any way, with arbitrary tokens in between."""
    ids: list[int] = []
    for fragment in draw(st.lists(st.one_of(st.sampled_from(FRAGMENTS), st.text(max_size=4)), max_size=8)):
        cut = draw(st.integers(0, len(fragment)))
        ids += draw(
            st.sampled_from([encode(fragment), encode(fragment[:cut], fragment[cut:]), encode(*fragment)])
        )
        ids += draw(st.lists(st.integers(3, TOKENIZER.get_vocab_size() - 1), max_size=1))
    return ids


@settings(max_examples=400, deadline=None)
@given(turns(), st.data(), st.booleans(), st.booleans())
def test_any_split_parses_as_the_whole(
    ids: list[int], data: st.DataObject, in_reasoning: bool, tools: bool
) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(ids)), max_size=10))
    options = {"in_reasoning": in_reasoning, "tools": tools}
    whole = parse(ids, **options)
    assert parse(ids, cuts, **options) == whole
    assert parse(ids, list(range(len(ids))), **options) == whole
    deltas, message, _ = whole
    assert "".join(delta.text for delta in deltas if isinstance(delta, TextDelta)) == message.content
    assert "".join(delta.text for delta in deltas if isinstance(delta, ReasoningDelta)) == message.reasoning
    assert [delta.call for delta in deltas if isinstance(delta, ToolCallDelta)] == list(message.tool_calls)


@settings(max_examples=400, deadline=None)
@given(turns())
def test_agrees_with_a_parser_that_sees_the_whole_text(ids: list[int]) -> None:
    _, message, unparsed = parse(ids, list(range(len(ids))))
    calls = [(call.name, call.parsed) for call in message.tool_calls]
    assert (message.content, message.reasoning, calls, unparsed) == reference(RENDERER.decode(ids))


@settings(max_examples=400, deadline=None)
@given(turns(), st.booleans())
def test_reasoning_tokens_are_those_that_write_something_between_the_delimiters(
    ids: list[int], in_reasoning: bool
) -> None:
    reading = parser(in_reasoning=in_reasoning)
    for token in ids:
        reading.feed([token])
    reading.finish()
    within, at, data = 0, 0, b"".join(RENDERER.table[token] for token in ids if token != END)
    opening = None if in_reasoning else re.match(r"\s*<think>", data.decode(errors="replace"))
    begin = data.index(b"<think>") + len(b"<think>") if opening else 0
    region = (
        range(begin, len(data[begin:].partition(b"</think>")[0]) + begin)
        if opening or in_reasoning
        else range(0)
    )
    for token in ids:
        written = RENDERER.table[token] if token != END else b""
        within += any(place in region for place in range(at, at + len(written)))
        at += len(written)
    assert reading.reasoning_tokens == within


@pytest.mark.parametrize(
    ("pieces", "in_reasoning", "count"),
    [
        (["<think>", "hm hm", "</think>", "Yes."], False, 5),
        (["\n", "<think>", "hm hm", "</think>", "Yes."], False, 5),
        (["hm hm", "</think>", "Yes."], True, 5),
        (["<think>", "hm hm"], False, 5),
        (["<think>", "</think>", "Yes."], False, 0),
        (["<th", "ink>", "hm hm", "</th", "ink>", "Yes."], False, 5),
        (["Yes.", "<think>", "hm", "</think>"], False, 0),
        (["Yes."], False, 0),
    ],
)
def test_reasoning_tokens(pieces: list[str], in_reasoning: bool, count: int) -> None:
    assert len(encode("hm hm")) == 5
    reading = parser(in_reasoning=in_reasoning)
    reading.feed([*encode(*pieces), END])
    reading.finish()
    assert reading.reasoning_tokens == count


@settings(max_examples=200, deadline=None)
@given(turns())
def test_what_is_said_can_be_written_and_hashed(ids: list[int]) -> None:
    message = parse(ids)[1]
    assert message.digest
    json.dumps(
        [message.content, message.reasoning, *(call.parsed for call in message.tool_calls)], allow_nan=False
    ).encode()


ARGUMENTS = st.dictionaries(
    st.text(min_size=1, max_size=5), st.one_of(st.text(max_size=8), st.integers(), st.booleans()), max_size=3
)
SAID = st.text(st.characters(exclude_characters="<", exclude_categories=["Cs"]), max_size=12).filter(
    lambda text: not text or (text.strip() and not text.endswith("\n"))
)


@settings(max_examples=200, deadline=None)
@given(SAID, st.lists(st.tuples(st.sampled_from(["find", "price"]), ARGUMENTS), max_size=3))
def test_a_canonical_turn_round_trips_through_the_template(
    said: str, calls: list[tuple[str, dict[str, object]]]
) -> None:
    made = tuple(
        ToolCall(f"call_x_{i}", name, json.dumps(values, ensure_ascii=False))
        for i, (name, values) in enumerate(calls)
    )
    if any("</tool_call>" in call.arguments for call in made):
        return
    asked = (Message("system", "S"), Message("user", "U"))
    turn = Message("assistant", said, tool_calls=made)
    sampled = (
        RENDERER.text([*asked, turn], generate=False).removeprefix(RENDERER.text(asked)).removesuffix("\n")
    )
    ids = encode(sampled)
    parsed = parse(ids)[1]
    assert parsed == turn
    assert RENDERER.text([*asked, parsed], generate=False) == RENDERER.text(asked) + sampled + "\n"


def test_parallel_calls_keep_the_text_of_their_arguments() -> None:
    ids = encode(
        'Looking.\n<tool_call>\n{"name": "a", "arguments": {"x":  1.50}}\n</tool_call>\n'
        '<tool_call>\n{"arguments":{}, "name":"b"}\n</tool_call><|im_end|>'
    )
    deltas, message, unparsed = parse(ids)
    first, second = ToolCall("call_x_0", "a", '{"x":  1.50}'), ToolCall("call_x_1", "b", "{}")
    assert deltas == [TextDelta("Looking."), ToolCallDelta(0, first), ToolCallDelta(1, second)]
    assert message == Message("assistant", "Looking.", tool_calls=(first, second))
    assert unparsed == 0


def test_text_streams_before_the_turn_ends() -> None:
    p = parser()
    assert p.feed(encode("Hello there\n")) == [TextDelta("Hello there")]
    assert p.feed(encode("you <tool")) == [TextDelta("\nyou ")]
    assert p.flush() == [TextDelta("<tool")]
    assert p.flush() == []


def test_a_character_spread_over_tokens_appears_whole() -> None:
    p = parser()
    ids = encode("🎉")
    assert len(ids) > 1
    assert [delta for token in ids for delta in p.feed([token])] == [TextDelta("🎉")]
    assert p.feed(ids[:1]) == []
    assert p.flush() == [TextDelta("\ufffd")]


def test_reasoning() -> None:
    turn = encode("<think>\nfirst\n\nthen\n</think>\n\nDone.<|im_end|>")
    assert parse(turn)[1] == Message("assistant", "Done.", reasoning="first\n\nthen")
    opened = encode("first\n</think>\n\nDone.")
    assert parse(opened, in_reasoning=True)[1] == Message("assistant", "Done.", reasoning="first")
    assert parse(encode("<think>\nnever ends\n"))[1] == Message("assistant", reasoning="never ends")
    late = parse(encode("Well <think>x</think>"))
    assert late[1:] == (Message("assistant", "Well <think>x</think>"), 2)


@pytest.mark.parametrize(
    "markup",
    [
        "<tool_call>\nnot json\n</tool_call>",
        '<tool_call>{"name": "f"}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {}, "more": 1}</tool_call>',
        '<tool_call>{"name": "f", "arguments": "{}"}</tool_call>',
        '<tool_call>{"name": "f", "name": "g", "arguments": {}}</tool_call>',
        '<tool_call>{"name": 3, "arguments": {}}</tool_call>',
        '<tool_call>{"name": "", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"x": NaN}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"x": 1e999}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"x": "\\ud800"}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"x": ' + "[" * 3000 + "]" * 3000 + "}}</tool_call>",
        '<tool_call>[{"name": "f", "arguments": {}}]</tool_call>',
        '<tool_call>\n<tool_call>{"name": "f", "arguments": {}}</tool_call>',
        '<tool_call>\n{"name": "f", "arguments": {}}',
        "<tool_call>",
        "</tool_call>",
    ],
)
def test_what_is_no_call_comes_back_verbatim_and_counted(markup: str) -> None:
    text = f"Before\n\n{markup}"
    _, message, unparsed = parse(encode(text), list(range(0, 4000, 7)))
    assert message == Message("assistant", text)
    assert unparsed == 1


def test_without_tools_calls_are_text() -> None:
    text = 'See\n<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>\n'
    assert parse(encode(text), tools=False)[1:] == (Message("assistant", text), 0)


def test_control_tokens_other_than_the_end_stay_visible() -> None:
    assert parse(encode("a<|im_start|>b<|im_end|>"))[1].content == "a<|im_start|>b"


def test_whitespace_alone_is_an_answer_but_not_between_tags() -> None:
    assert parse(encode(" \n"))[1].content == " \n"
    call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    assert parse(encode(f"\n{call}\n\n{call} \n"))[1].content == ""


def test_parsers_are_found_by_name() -> None:
    assert load("parser", "hermes") is HermesParser
    with pytest.raises(ConfigError, match=r"Known: deepseek, .*hermes"):
        PolicyLanguage.of_policy(POLICY, "nothing")
