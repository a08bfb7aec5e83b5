"""Markup that is no call comes back as it was written, and is counted."""

# ruff: noqa: ISC004, RUF001 - the vertical lines of DeepSeek's tags are full-width

import pytest

from proxies.dialect import TextDelta
from tests.proxies.parsers.families import FAMILIES
from tests.proxies.parsers.turns import encode, parse, said

BY_NAME = {family.name: family for family in FAMILIES}
DEEP = "[" * 3_000 + "]" * 3_000
MALFORMED = {
    "qwen3-coder": [
        "<tool_call>\n<function=f>\n</tool_call>",
        "<tool_call>\n<function=>\n</function>\n</tool_call>",
        "<tool_call>\n</tool_call>",
        "<tool_call>\n<function=f>\n<parameter=a>\n1\n</function>\n</tool_call>",
        "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\nmore\n</function>\n</tool_call>",
        "<tool_call>\n<function=f>\n<parameter=a>1</parameter><parameter=a>2</parameter>\n</function>\n</tool_call>",
        "<tool_call>\n<function=f>\n</function>\n<function=g>\n</function>\n</tool_call>",
        '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>',
        "<tool_call>\n<function=f>\n</function>",
        "</tool_call>",
    ],
    "glm-4.5": [
        "<tool_call></tool_call>",
        "<tool_call>f g</tool_call>",
        "<tool_call>f\n<arg_key>a</arg_key>\n</tool_call>",
        "<tool_call>f\n<arg_value>a</arg_value>\n</tool_call>",
        "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\nmore</tool_call>",
        "<tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value><arg_key>a</arg_key><arg_value>2</arg_value></tool_call>",
        '<tool_call>{"name": "f", "arguments": {}}</tool_call>',
        "<tool_call>f",
    ],
    "minimax-m2": [
        "<minimax:tool_call>\n</minimax:tool_call>",
        '<minimax:tool_call>\n<invoke name="f">\n</minimax:tool_call>',
        "<minimax:tool_call>\n<invoke name=f>\n</invoke>\n</minimax:tool_call>",
        '<minimax:tool_call>\n<invoke name="f">\n<parameter name="a">1\n</invoke>\n</minimax:tool_call>',
        '<minimax:tool_call>\n<invoke name="f">\n</invoke>\n<invoke>\n</invoke>\n</minimax:tool_call>',
        '<minimax:tool_call>\n<invoke name="f">\n</invoke>',
    ],
    "deepseek-v3": [
        "<｜tool▁calls▁begin｜><｜tool▁calls▁end｜>",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>other<｜tool▁sep｜>f\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>[]<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁calls▁end｜>",
        "<｜tool▁call▁begin｜>",
        "<｜tool▁calls▁begin｜>",
    ],
    "kimi-k2": [
        "<|tool_calls_section_begin|><|tool_calls_section_end|>",
        "<|tool_calls_section_begin|><|tool_call_begin|>f:0<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.f<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>1<|tool_call_end|><|tool_calls_section_end|>",
        "<|tool_call_end|>",
    ],
    "gemma4": [
        "<|tool_call>call:f<tool_call|>",
        "<|tool_call>f{}<tool_call|>",
        "<|tool_call>call:f{a:b}<tool_call|>",
        "<|tool_call>call:f{a:1,a:2}<tool_call|>",
        '<|tool_call>call:f{a:<|"|>b}<tool_call|>',
        "<|tool_call>call:f{a:1} more<tool_call|>",
        "<|tool_call>call:f{a:01}<tool_call|>",
        "<|tool_call>call:f{a:1e999}<tool_call|>",
        f"<|tool_call>call:f{{a:{DEEP}}}<tool_call|>",
        "<|tool_call>call:f{a:<escape>b<escape>}<tool_call|>",
        "<tool_call|>",
    ],
    "functiongemma": [
        '<start_function_call>call:f{a:<|"|>b<|"|>}<end_function_call>',
        "<start_function_call>call:f{a:1}",
    ],
    "mistral-v3": [
        "[TOOL_CALLS]",
        "[TOOL_CALLS][]",
        '[TOOL_CALLS][{"name": "f"}]',
        '[TOOL_CALLS][{"name": "f", "arguments": {}}] more',
        '[TOOL_CALLS][{"name": "f", "arguments": {}, "id": 3}]',
        '[TOOL_CALLS][{"name": "f", "arguments": "{}"}]',
        f'[TOOL_CALLS][{{"name": "f", "arguments": {{"a": {DEEP}}}}}]',
        '[TOOL_CALLS][{"name": "f", "arguments": {}}, {"name": "g"}]',
        '[TOOL_CALLS]{"name": "f", "arguments": {}}',
        "[ARGS]",
    ],
    "mistral-v13": [
        "[TOOL_CALLS]f",
        "[TOOL_CALLS]f[ARGS]",
        "[TOOL_CALLS]f[ARGS]1",
        "[TOOL_CALLS]f[ARGS]{} more",
        "[TOOL_CALLS]f[ARGS]{}[TOOL_CALLS]",
        "[TOOL_CALLS][ARGS]{}",
        f'[TOOL_CALLS]f[ARGS]{{"a": {DEEP}}}',
    ],
    "llama-3.1": [
        "<|python_tag|>",
        "<|python_tag|>f.call(a=1)",
        '<|python_tag|>{"name": "f", "arguments": {}}',
        '<|python_tag|>{"name": "f", "parameters": {}, "more": 1}',
        '<|python_tag|>{"name": "f", "parameters": {}} {"name": "f", "parameters": {}}',
        '<|python_tag|>{"type": "other", "name": "f", "parameters": {}}',
        f'<|python_tag|>{{"name": "f", "parameters": {{"a": {DEEP}}}}}',
    ],
    "lfm2": [
        "<|tool_call_start|><|tool_call_end|>",
        "<|tool_call_start|>[]<|tool_call_end|>",
        "<|tool_call_start|>f()<|tool_call_end|>",
        "<|tool_call_start|>[f(1)]<|tool_call_end|>",
        "<|tool_call_start|>[f(a=1, a=2)]<|tool_call_end|>",
        "<|tool_call_start|>[f(a=b)]<|tool_call_end|>",
        "<|tool_call_start|>[f(a='b)]<|tool_call_end|>",
        "<|tool_call_start|>[f(a=1) g()]<|tool_call_end|>",
        "<|tool_call_start|>[f(a=(1, 2))]<|tool_call_end|>",
        "<|tool_call_start|>[f(a=__import__('os'))]<|tool_call_end|>",
        "<|tool_call_start|>[f(a='\\ud800')]<|tool_call_end|>",
        f"<|tool_call_start|>[f(a={DEEP})]<|tool_call_end|>",
        "<|tool_call_start|>[f(a=1)]",
    ],
}  # fmt: skip
CASES = [(name, markup) for name, cases in MALFORMED.items() for markup in cases]


@pytest.mark.parametrize(("name", "markup"), CASES, ids=[f"{name}: {text[:60]}" for name, text in CASES])
def test_what_is_no_call_comes_back_verbatim_and_counted(name: str, markup: str) -> None:
    family = BY_NAME[name]
    text = f"Before\n\n{markup}"
    ids = encode(family, text)
    _, message, unparsed, _ = parse(family, ids, range(0, len(ids), 7))
    assert said(message) == (text, "", [])
    assert unparsed >= 1


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("llama-3.1", '{"name": "f"}'),
        ("llama-3.1", '{"name": "f", "parameters": 3}'),
        ("llama-4", "[f(a=b)]"),
        ("llama-4", "[f(a=1)] is what I would call."),
    ],
)
def test_an_answer_that_begins_like_a_call_and_is_none_is_text(name: str, text: str) -> None:
    ids = encode(BY_NAME[name], text)
    _, message, unparsed, _ = parse(BY_NAME[name], ids, range(len(ids)))
    assert said(message) == (text, "", [])
    assert unparsed == 1


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("llama-3.1", '{"names": 1}'),
        ("llama-3.1", "{}"),
        ("llama-3.1", "{" + " " * 200 + '"name": "f", "parameters": {}}'),
        ("llama-3.1", 'See {"name": "f", "parameters": {}}'),
        ("llama-4", "[1](https://example.org)"),
        ("llama-4", "[]"),
        ("llama-4", "See [f(a=1)]"),
        ("llama-4", "[" + "f" * 200 + "(a=1)]"),
    ],
)
def test_other_answers_are_plain_text(name: str, text: str) -> None:
    ids = encode(BY_NAME[name], text)
    _, message, unparsed, _ = parse(BY_NAME[name], ids, range(len(ids)))
    assert said(message) == (text, "", [])
    assert unparsed == 0


def test_text_that_is_no_call_streams_before_the_turn_ends() -> None:
    for name in ("llama-3.1", "llama-4", "gpt-oss"):
        family = BY_NAME[name]
        opening = "<|channel|>final<|message|>" if name == "gpt-oss" else ""
        deltas = parse(family, encode(family, f"{opening}Hello there"))[0]
        assert deltas == [TextDelta("Hello there")]


HARMONY = [
    ("Hello", ("Hello", "", []), 1),
    ("<|channel|>other<|message|>Hello<|end|>", ("<|channel|>other<|message|>Hello<|end|>", "", []), 1),
    ("<|channel|>final<|message|>Hi", ("Hi", "", []), 0),
    ("<|channel|>analysis<|message|>hm", ("", "hm", []), 0),
    ("<|channel|>commentary<|message|>So.<|end|><|start|>assistant<|channel|>final<|message|>Hi", ("So.\nHi", "", []), 0),
    (
        "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>analysis<|message|>b<|end|>"
        "<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"x\": 1}",
        ("", "a\nb", [("f", {"x": 1})]),
        0,
    ),
    (" to=functions.f<|channel|>commentary json<|message|>{}<|end|><|start|>assistant to=functions.g<|channel|>commentary"
     "<|message|>{}", ("", "", [("f", {}), ("g", {})]), 0),
    (
        "<|channel|>commentary to=functions.f<|message|>{<|end|><|start|>assistant<|channel|>final<|message|>Hi",
        ("<|channel|>commentary to=functions.f<|message|>{<|end|>\nHi", "", []),
        1,
    ),
    (
        "<|channel|>commentary to=browser.open<|message|>{}",
        ("<|channel|>commentary to=browser.open<|message|>{}", "", []),
        1,
    ),
    ("<|channel|>final", ("<|channel|>final", "", []), 1),
    ("", ("", "", []), 0),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected", "count"), HARMONY, ids=[text[:70] for text, _, _ in HARMONY])
def test_harmony(text: str, expected: tuple[str, str, list[object]], count: int) -> None:
    family = BY_NAME["gpt-oss"]
    ids = [*encode(family, text), *encode(family, "<|return|>")]
    whole = parse(family, ids)
    assert said(whole[1]) == expected
    assert whole[2] == count
    assert parse(family, ids, range(len(ids))) == whole


def test_the_reasoning_of_all_analyses_is_counted() -> None:
    family = BY_NAME["gpt-oss"]
    text = (
        "<|channel|>analysis<|message|>",
        "hm",
        "<|end|>",
        "<|start|>assistant<|channel|>final<|message|>Hi",
    )
    ids = encode(family, *text[:3], "<|start|>assistant", *text)
    assert parse(family, ids)[3] == 2 * len(encode(family, "hm"))
