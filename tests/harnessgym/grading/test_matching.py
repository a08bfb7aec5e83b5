"""Comparison of hostile data with what is expected: never an error, never a wrong yes."""

import json
import math

from hypothesis import given
from hypothesis import strategies as st

from harnessgym.grading.matching import matches, parse_json, same

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=12,
)


@given(JSON)
def test_a_value_is_the_same_after_a_round_trip(value):
    assert same(json.loads(json.dumps(value)), value)
    assert matches(json.dumps(value).encode(), json.dumps(value), "json", 0.0)


@given(JSON, JSON)
def test_sameness_is_symmetric_and_no_wider_than_equality(one, other):
    assert same(one, other) == same(other, one)
    assert not same(one, other) or one == other


@given(st.binary(), st.sampled_from(["exact", "stripped", "float", "json"]))
def test_no_output_raises(data, how):
    assert matches(data, '{"x": "never"}', how, 1e-6) in (False, data == b'{"x": "never"}')


def test_booleans_are_no_numbers():
    assert not same(True, 1)
    assert not same(0, False)
    assert same(1, 1.0)
    assert not same(None, False)


def test_numbers_that_are_none():
    assert parse_json("NaN") is None
    assert parse_json("-Infinity") is None
    assert parse_json("9" * 5_000) is None
    assert parse_json("[" * 100_000) is None
    assert parse_json("1e309") == (math.inf,)
    assert not same(math.inf, 1e308, 1.0)
    assert not same(10**400, 1.5, 1e-6)
    assert not matches(b"nan", "1", "float", 1.0)
    assert not matches(b"inf", "1", "float", 1.0)


def test_tolerance_is_relative_above_1():
    assert matches(b"1000001", "1000000", "float", 1e-5)
    assert not matches(b"0.00002", "0", "float", 1e-5)
