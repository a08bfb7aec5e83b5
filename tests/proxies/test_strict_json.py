"""What strict JSON refuses, and values inside a longer text."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxies.strict_json import MAX_DEPTH, elements, loads, loads_lenient, scan, spans

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


@settings(max_examples=50)
@given(VALUES, st.text(alphabet="x ,[", max_size=5), st.sampled_from(["", ",", "]", " tail"]))
def test_a_value_is_read_at_its_place_and_ends_where_it_ends(value: object, before: str, after: str) -> None:
    text = json.dumps(value)
    assert scan(before + text + after, len(before), 0) == (value, len(before + text))


@pytest.mark.parametrize("text", ["", "]", "nul", ",1"])
def test_where_no_value_begins_none_is_read(text: str) -> None:
    with pytest.raises(ValueError, match="not a JSON value"):
        scan(text, 0, 0)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("NaN", "NaN is not JSON"),
        ("[-Infinity]", "-Infinity is not JSON"),
        ("1e999", "1e999 is out of range"),
    ],
)
def test_numbers_that_json_lacks_are_refused_by_name(text: str, problem: str) -> None:
    for read in (loads, loads_lenient, lambda whole: scan(whole, 0, 0)):
        with pytest.raises(ValueError, match=problem):
            read(text)


def test_nesting_is_counted_to_the_limit() -> None:
    assert loads(nested(MAX_DEPTH)) is not None
    with pytest.raises(ValueError, match="nested too deeply"):
        loads(nested(MAX_DEPTH + 1))


@pytest.mark.parametrize("depth", [0, 1, 40])
def test_what_a_value_stands_in_counts_as_nesting(depth: int) -> None:
    allowed = nested(MAX_DEPTH - depth)
    assert scan(allowed, 0, depth)[1] == len(allowed)
    with pytest.raises(ValueError, match="nested too deeply"):
        scan(nested(MAX_DEPTH - depth + 1), 0, depth)


def test_objects_count_as_nesting_too() -> None:
    with pytest.raises(ValueError, match="nested too deeply"):
        loads('{"a":' * (MAX_DEPTH + 1) + "1" + "}" * (MAX_DEPTH + 1))


def test_a_value_may_be_nested_too_deeply_for_the_parser_itself() -> None:
    with pytest.raises(ValueError, match="nested too deeply"):
        loads(nested(200_000))


def test_half_a_pair_becomes_a_replacement_character() -> None:
    text = r'["cut \ud83c", "\ude00 cut", {"\ud800": 1}]'
    expected = ["cut \ufffd", "\ufffd cut", {"\ufffd": 1}]
    assert loads_lenient(text) == expected
    assert scan(text, 0, 0)[0] == expected
    with pytest.raises(ValueError):
        loads(text)


def test_a_whole_pair_is_one_character() -> None:
    text = r'"\ud83c\udf89"'
    assert loads(text) == loads_lenient(text) == scan(text, 0, 0)[0] == "🎉"


def test_a_surrogate_elsewhere_in_the_text_does_not_matter() -> None:
    text = r'["a", "\ud800"]'
    assert scan(text, 1, 1) == ("a", 4)


@pytest.mark.parametrize(
    ("text", "members"),
    [
        ("{}", {}),
        (' { "a" : 1.0 , "b":[1,  2] } ', {"a": "1.0", "b": "[1,  2]"}),
        (r'{"k\u00e4": "\u00e4"}', {"kä": r'"\u00e4"'}),
        ('{"a":{"a":1}}', {"a": '{"a":1}'}),
    ],
)
def test_members_keep_the_text_that_was_written(text: str, members: dict[str, str]) -> None:
    assert spans(text) == members


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"a": 1, "a": 1}', "key 'a' appears twice"),
        (r'{"a": 1, "\u0061": 1}', "key 'a' appears twice"),
        ("[]", "not a JSON object"),
        ("null", "not a JSON object"),
    ],
)
def test_members_are_of_one_object_and_have_different_keys(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        spans(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[]", []),
        (" [ ] ", []),
        ('[1.50, {"a":  [2]} ,"]"]', ["1.50", '{"a":  [2]}', '"]"']),
        ("[[1, 2], [3]]", ["[1, 2]", "[3]"]),
    ],
)
def test_elements_keep_the_text_that_was_written(text: str, expected: list[str]) -> None:
    assert elements(text) == expected


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{}", "not a JSON array"),
        ("1", "not a JSON array"),
        ("[1", "delimiter"),
        ("[1] 2", "Extra data"),
        ("[NaN]", "NaN is not JSON"),
        ("", "Expecting value"),
        (nested(MAX_DEPTH + 1), "nested too deeply"),
    ],
)
def test_elements_are_of_one_array(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        elements(text)
