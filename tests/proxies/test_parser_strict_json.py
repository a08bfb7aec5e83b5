import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxies import strict_json

VALUES = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text()
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(), inner, max_size=3)),
    max_leaves=10,
)


@given(VALUES, st.booleans(), st.sampled_from([None, 1]))
def test_ordinary_values_come_through(value: object, ascii_only: bool, indent: int | None) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    assert strict_json.loads(text) == value == strict_json.loads_lenient(text)


@given(
    st.dictionaries(st.text(), VALUES, max_size=4),
    st.sampled_from([None, 1]),
    st.sampled_from([(",", ":"), (" ,\t", " : \n")]),
)
def test_members_are_found_with_their_text(
    value: dict[str, object], indent: int | None, separators: tuple[str, str]
) -> None:
    found = strict_json.spans(f" {json.dumps(value, indent=indent, separators=separators)}\n")
    assert {key: json.loads(text) for key, text in found.items()} == value


@pytest.mark.parametrize(
    "text", ["NaN", "[Infinity]", "-1e400", "[" * 101 + "]" * 101, "[" * 10**5, '{"a": 1, }', "", "9" * 5000]
)
def test_what_cannot_be_written_again_is_refused(text: str) -> None:
    for load in (strict_json.loads, strict_json.loads_lenient):
        with pytest.raises(ValueError):
            load(text)


def test_lone_surrogates() -> None:
    text = json.dumps({"cut \ud83c": ["\udf89", "🎉", 1]})
    with pytest.raises(ValueError):
        strict_json.loads(text)
    assert strict_json.loads_lenient(text) == {"cut \ufffd": ["\ufffd", "🎉", 1]}


@pytest.mark.parametrize("text", ['{"a": 1, "a": 2}', "[1]", '"a"', '{"a": 1} {}'])
def test_spans_are_of_one_object_without_repeated_keys(text: str) -> None:
    with pytest.raises(ValueError):
        strict_json.spans(text)
