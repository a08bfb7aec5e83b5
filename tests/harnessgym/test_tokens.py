from itertools import pairwise

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from harnessgym.errors import TraceError
from harnessgym.tokens import (
    TokenArray,
    VersionSpan,
    hash_completion,
    hash_ids,
    narrow_ids,
    pack_ids,
    pack_logprobs,
    spans_of,
    unpack_logprobs,
    versions_of,
    widen_ids,
)

IDS = st.lists(st.integers(0, 2**31 - 1))


@given(IDS)
def test_ids_survive_packing(ids):
    assert np.frombuffer(pack_ids(ids), "<i4").tolist() == ids
    assert pack_ids(TokenArray(ids)) == pack_ids(ids)


@given(
    IDS
    | st.lists(st.integers(0, 2**16 - 1))
    | st.lists(st.integers(0, 2**24 - 1))
    | st.lists(st.integers(-(2**31), 0))
)
def test_ids_survive_storage(ids):
    """So do those that were stored in four bytes each."""
    for blob in (narrow_ids(ids), pack_ids(ids)):
        assert widen_ids(blob, len(ids)).tolist() == ids
        assert widen_ids(blob, len(ids)).dtype == np.int32
        assert TokenArray.stored(blob, len(ids)) == ids


@pytest.mark.parametrize(
    ("highest", "width"), [(0, 2), (65_535, 2), (65_536, 3), (2**24 - 1, 3), (2**24, 4), (-1, 4)]
)
def test_ids_are_stored_in_as_few_bytes_as_they_need(highest, width):
    assert len(narrow_ids([1, highest])) == 2 * width


@pytest.mark.parametrize(("blob", "length"), [(b"12345", 2), (b"1" * 10, 2), (b"12", 0)])
def test_bytes_that_are_no_such_number_of_ids_are_refused(blob, length):
    with pytest.raises(TraceError, match=f"Segment s: {len(blob)} bytes are not {length} token ids"):
        widen_ids(blob, length, "s")


@given(st.lists(st.floats(max_value=0.0, width=32, allow_nan=False)))
def test_logprobs_survive_packing(logprobs):
    assert unpack_logprobs(pack_logprobs(logprobs)).tolist() == logprobs


def test_bytes_are_little_endian_whatever_the_machine():
    assert pack_ids([1, 258]) == bytes([1, 0, 0, 0, 2, 1, 0, 0])
    assert pack_logprobs([-1.0]) == bytes([0, 0, 0x80, 0xBF])


def test_an_array_packs_like_a_list():
    assert pack_ids(np.array([1, 2], dtype=np.int64)) == pack_ids([1, 2])  # type: ignore[arg-type]


def test_an_id_that_does_not_fit_is_refused():
    with pytest.raises(OverflowError):
        pack_ids([2**31])


def test_a_hash_names_exactly_its_bytes():
    assert hash_ids([]) == xxhash.xxh3_128_hexdigest(b"")
    assert hash_ids([1, 2]) == xxhash.xxh3_128_hexdigest(pack_ids([1, 2])) != hash_ids([2, 1])


def test_a_completion_hash_covers_ids_logprobs_and_spans():
    base = ([1, 2], [-0.5, -1.0], [VersionSpan(0, 2, 3)])
    others = [
        ([1, 3], *base[1:]),
        (base[0], [-0.5, -1.5], base[2]),
        (*base[:2], [VersionSpan(0, 2, 4)]),
        (*base[:2], [VersionSpan(0, 1, 3), VersionSpan(1, 2, 3)]),
    ]
    assert len({hash_completion(*base), *(hash_completion(*other) for other in others)}) == 5
    assert hash_completion(*base) == hash_completion(*base)


@given(st.lists(st.integers(0, 2**31 - 1), max_size=9), st.slices(9))
def test_a_token_array_is_like_any_sequence_of_the_same_ids(ids, part):
    array = TokenArray(ids)
    assert array == ids == list(array)
    assert array == tuple(ids) == tuple(array)
    assert hash(array) == hash(tuple(ids))
    assert array[part] == ids[part]
    assert array != [*ids, 1]
    assert array != "ids"
    assert pack_ids(array) == pack_ids(ids)
    assert hash_ids(TokenArray(array)) == hash_ids(ids)


@pytest.mark.parametrize("token", [2**31, -(2**31) - 1])
def test_an_id_beyond_int32_is_refused(token):
    with pytest.raises(OverflowError):
        TokenArray([token])


@given(st.lists(st.integers(0, 5), max_size=30))
def test_spans_are_the_runs_of_versions(versions):
    spans = spans_of(versions)
    assert versions_of(spans, len(versions)).tolist() == versions
    assert all(left.version != right.version for left, right in pairwise(spans))


@pytest.mark.parametrize(
    "spans",
    [
        [],
        [VersionSpan(0, 2, 1)],
        [VersionSpan(1, 3, 1)],
        [VersionSpan(0, 4, 1)],
        [VersionSpan(0, 2, 1), VersionSpan(1, 3, 1)],
        [VersionSpan(0, 0, 1), VersionSpan(0, 3, 1)],
    ],
)
def test_spans_that_do_not_tile_the_completion_are_refused(spans):
    with pytest.raises(TraceError, match=r"[Ss]pan"):
        versions_of(spans, 3)
