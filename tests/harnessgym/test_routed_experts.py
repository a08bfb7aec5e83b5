"""Expert numbers survive being packed, and the calls of a row give each token one set of experts."""

import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from harnessgym.errors import TraceError
from harnessgym.routed_experts import PackedExperts, RoutedExperts, RowExperts

SHAPES = st.tuples(st.integers(0, 9), st.integers(1, 4), st.integers(1, 3))


def numbered(start: int, tokens: int, first: int = 0, dtype: type = np.uint8) -> RoutedExperts:
    """Experts that differ from token to token."""
    return RoutedExperts(start, (first + np.arange(tokens * 6).reshape(tokens, 3, 2) % 200).astype(dtype))


@given(
    st.sampled_from([np.uint8, np.uint16]).flatmap(lambda kind: arrays.arrays(kind, SHAPES)),
    st.integers(0, 99),
)
def test_what_is_packed_is_unpacked(experts, start):
    routed = RoutedExperts(start, experts)
    found = routed.packed().unpacked()
    assert (found.start, found.end, found.experts.dtype) == (start, start + len(experts), experts.dtype)
    assert np.array_equal(found.experts, experts)


@pytest.mark.parametrize(
    ("blob", "shape", "width"),
    [
        (b"no zlib", (1, 2, 3), 1),
        (zlib.compress(bytes(5)), (1, 2, 3), 1),
        (zlib.compress(bytes(7)), (1, 2, 3), 1),
        (zlib.compress(bytes(24)), (1, 2, 3), 4),
    ],
)
def test_other_bytes_are_refused(blob, shape, width):
    with pytest.raises(TraceError, match="are not the routed experts of 1 tokens in 2 layers, 3 each"):
        PackedExperts(0, *shape, width, blob).unpacked()


@pytest.mark.parametrize(
    ("start", "experts"),
    [
        (0, np.zeros((2, 3), np.uint8)),
        (0, np.zeros((2, 3, 1), np.int32)),
        (-1, np.zeros((2, 3, 1), np.uint8)),
    ],
)
def test_experts_have_three_dimensions_and_a_beginning(start, experts):
    with pytest.raises(TraceError, match="uint8 or uint16"):
        RoutedExperts(start, experts)


def test_the_beginning_can_be_cut():
    routed = numbered(3, 5)
    assert np.array_equal(routed.beginning_at(5).experts, routed.experts[2:])
    assert [routed.beginning_at(at).start for at in (0, 3, 5, 8)] == [3, 3, 5, 8]
    assert len(routed.beginning_at(8).experts) == 0


def test_a_row_has_the_experts_of_its_calls_and_knows_where_there_are_none():
    first, second = numbered(0, 4), numbered(5, 3, first=50)
    row = RowExperts.joined([first, second], 10)
    assert row.recorded.tolist() == [True] * 4 + [False] + [True] * 3 + [False] * 2
    assert np.array_equal(row.experts[:4], first.experts)
    assert np.array_equal(row.experts[5:8], second.experts)


def test_a_token_keeps_the_experts_of_the_call_that_computed_it_first():
    first, again = numbered(0, 4), numbered(2, 5, first=100, dtype=np.uint16)
    row = RowExperts.joined([first, again], 8)
    assert row.experts.dtype == np.uint16
    assert np.array_equal(row.experts[:4], first.experts)
    assert np.array_equal(row.experts[4:7], again.experts[2:])


@pytest.mark.parametrize("other", [RoutedExperts(4, np.zeros((1, 2, 2), np.uint8)), numbered(4, 5)])
def test_calls_of_other_models_or_with_too_many_tokens_make_no_row(other):
    with pytest.raises(TraceError, match="no row of 8 tokens of one model"):
        RowExperts.joined([numbered(0, 4), other], 8)
