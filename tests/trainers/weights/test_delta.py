import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harnessgym.errors import PolicyError
from trainers.weights import delta
from trainers.weights.delta import Delta, apply, encode, flat_bytes

DTYPES = [
    torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2, torch.int8,
    torch.uint8, torch.bool, torch.int64, torch.complex64, torch.complex128,
]  # fmt: skip


def of_bytes(raw, dtype, shape):
    """A tensor whose memory is `raw`, NaNs and all."""
    size = int(np.prod(shape)) * dtype.itemsize
    return (
        torch.from_numpy(np.resize(raw, size).astype(np.uint8).copy()).view(dtype).reshape(shape)
        if size
        else torch.empty(shape, dtype=dtype)
    )


def bits(tensor):
    return flat_bytes(tensor).tobytes()


@st.composite
def pairs(draw):
    """Two tensors that differ in anything from nothing to everything, by any bits."""
    dtype = draw(st.sampled_from([item for item in DTYPES if item != torch.bool]))
    shape = tuple(draw(st.lists(st.integers(0, 40), max_size=3)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    size = int(np.prod(shape)) * dtype.itemsize
    old = rng.integers(0, 256, max(size, 1), np.uint8)
    new = old.copy()
    share = draw(st.sampled_from([0.0, 1e-3, 0.01, 0.1, 0.3, 0.7, 1.0]))
    mask = rng.random(len(new)) < share
    new[mask] ^= rng.integers(1, 256, int(mask.sum()), np.uint8)
    return of_bytes(old, dtype, shape), of_bytes(new, dtype, shape)


@settings(max_examples=200, deadline=None)
@given(pair=pairs())
def test_a_delta_makes_the_new_tensor_of_its_base_bit_by_bit(pair):
    old, new = pair
    made = encode(old, new)
    target = old.clone()
    apply(made, target)
    assert bits(target) == bits(new)
    apply(made, target)
    assert bits(target) == bits(new), "an overwrite may come twice"
    assert len(made.payload) <= max(new.nbytes, 0)
    if made.coding != "whole":
        words = (
            old.reshape(-1).view(torch.uint8).reshape(old.numel(), -1) if old.numel() else torch.empty(0, 1)
        )
        others = (
            new.reshape(-1).view(torch.uint8).reshape(old.numel(), -1) if old.numel() else torch.empty(0, 1)
        )
        elements = int((words != others).any(-1).sum())
        assert elements <= made.changed <= elements * max(old.dtype.itemsize // 8, 1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (7, 11), (300, 1001)])
def test_every_dtype_and_shape(dtype, shape):
    rng = np.random.default_rng(0)
    raw = rng.integers(
        0, 2 if dtype == torch.bool else 256, max(int(np.prod(shape)), 1) * dtype.itemsize, np.uint8
    )
    old, changed = of_bytes(raw, dtype, shape), raw.copy()
    changed[:: 97 * dtype.itemsize] ^= 1
    new = of_bytes(changed, dtype, shape)
    made = encode(old, new)
    assert made.coding == ("whole" if old.nbytes and len(made.payload) == old.nbytes else "gap16")
    apply(made, old)
    assert bits(old) == bits(new)


def test_nan_payloads_and_the_sign_of_zero_are_bits():
    old = (
        torch.tensor([0x7FC0, 0x7FC0, 0x0000, 0x0000] + 1000 * [0x3F80], dtype=torch.int32)
        .to(torch.int16)
        .view(torch.bfloat16)
    )
    new = (
        torch.tensor([0x7FC0, 0x7FC1, -0x8000, 0x0000] + 1000 * [0x3F80], dtype=torch.int32)
        .to(torch.int16)
        .view(torch.bfloat16)
    )
    made = encode(old, new)
    assert made.changed == 2
    apply(made, old)
    assert old.view(torch.int16).equal(new.view(torch.int16))
    assert encode(new, new) == Delta("gap16", 0, 0, b"")


@pytest.mark.parametrize("gap", [1, 2, 65534, 65535, 65536, 65537, 131070, 131071, 300_000])
@pytest.mark.parametrize("first", [0, 1, 65535, 70_000])
def test_gaps_that_need_escapes(gap, first):
    old = torch.zeros(first + gap + 1, dtype=torch.uint8)
    new = old.clone()
    new[first] = new[-1] = 7
    made = encode(old, new)
    apply(made, old)
    assert old.equal(new)


def test_indices_beyond_32_bits_are_gaps():
    far = np.array([5, 2**31 + 7, 2**31 + 8, 2**33])
    gaps = delta._gaps(far, -1)
    assert np.concatenate(list(delta._indices(gaps))).tolist() == far.tolist()
    assert gaps.dtype == np.uint16


def test_few_distant_changes_have_absolute_indices_and_many_near_ones_gaps():
    old = torch.zeros(2_000_000, dtype=torch.bfloat16)
    few, many = old.clone(), old.clone()
    few[[3, 1_999_999]] = 1
    many[::100] = 1
    assert encode(old, few).coding == "int32"
    assert len(encode(old, few).payload) < 32
    assert encode(old, many).coding == "gap16"
    for new in (few, many):
        target = old.clone()
        apply(encode(old, new), target)
        assert target.equal(new)


def test_what_changes_everywhere_is_sent_whole():
    old = torch.randn(1000)
    made = encode(old, old + 1)
    assert (made.coding, made.changed, len(made.payload)) == ("whole", 1000, old.nbytes)


def test_strided_tensors_are_read_in_row_major_order():
    old = torch.arange(12.0).reshape(3, 4)
    made = encode(old.T.contiguous(), (old + (old == 5)).T)
    target = old.T.contiguous()
    apply(made, target)
    assert target.equal((old + (old == 5)).T)
    with pytest.raises(PolicyError, match="a contiguous tensor in main memory"):
        apply(made, old.T)


@pytest.mark.parametrize("other", [torch.zeros(3, 4), torch.zeros(12).bfloat16()])
def test_tensors_of_other_shape_or_dtype_have_no_delta(other):
    with pytest.raises(PolicyError, match="one dtype and shape"):
        encode(torch.zeros(12), other)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_damaged_payload_is_refused_or_overwrites_within_the_tensor(data):
    """Checksums come before this; here it must not write elsewhere, nor crash, nor take memory that a lie
    asks for.
    """
    old = torch.zeros(5000, dtype=torch.bfloat16)
    new = old.clone()
    new[:: data.draw(st.sampled_from([3, 50, 1700]))] = 1.5
    made = encode(old, new)
    raw = bytearray(made.payload)
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    cut = data.draw(st.sampled_from([len(raw), len(raw) - 1, len(raw) // 2]))
    target = old.clone()
    try:
        apply(Delta(made.coding, made.changed, made.index_bytes, bytes(raw[:cut])), target)
    except PolicyError:
        assert target.equal(old), "nothing is written of what is refused"


@pytest.mark.parametrize(
    ("coding", "changed", "index_bytes"),
    [
        ("gap16", 9, 0),
        ("gap16", 20, 0),
        ("gap16", -1, 0),
        ("gap16", 2, 99),
        ("int32", 2, 3),
        ("whole", 10, 0),
    ],
)
def test_counts_that_do_not_fit_are_refused(coding, changed, index_bytes):
    with pytest.raises(PolicyError, match="payload is damaged"):
        apply(Delta(coding, changed, index_bytes, b"\0abcd"), torch.zeros(10, dtype=torch.uint8))


def test_a_frame_that_claims_a_huge_size_is_refused_before_it_is_unpacked():
    import zstandard

    bomb = b"\1" + zstandard.ZstdCompressor().compress(bytes(1 << 28))
    with pytest.raises(PolicyError, match="268435456 bytes for at most 10 integers"):
        apply(Delta("gap16", 10, 0, bomb), torch.zeros(10, dtype=torch.uint8))
