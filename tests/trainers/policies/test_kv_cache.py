import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trainers.peers import SHAPE
from trainers.policies.kv_cache import KVCache
from trainers.policies.native_config import NativeConfig

CONFIG = NativeConfig.from_hf(SHAPE | {"architectures": ["LlamaForCausalLM"]})
HEADS, SIZE = CONFIG.num_key_value_heads, CONFIG.head_dim


def pair_of(batch, count, seed=0):
    """Keys and values of some tokens, [B, H, T, D]."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, batch, HEADS, count, SIZE, generator=generator)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_cache_begins_with_zeros_of_its_dtype(dtype):
    cache = KVCache(CONFIG, rows=3, length=5, dtype=dtype)
    assert cache.block.shape == (CONFIG.num_hidden_layers, 2, 3, HEADS, 5, SIZE)
    assert cache.block.dtype == dtype
    assert not cache.block.any()
    assert [tuple(layer.shape) for layer in cache.values] == [(3, HEADS, 5, SIZE)] * CONFIG.num_hidden_layers


@settings(max_examples=30)
@given(st.permutations(range(4)), st.integers(1, 4), st.data())
def test_a_token_is_written_to_its_row_and_position_and_nowhere_else(order, batch, data):
    cache = KVCache(CONFIG, rows=4, length=6)
    count = data.draw(st.integers(1, 3))
    rows = torch.tensor(order[:batch])
    starts = data.draw(st.lists(st.integers(0, 6 - count), min_size=batch, max_size=batch))
    positions = torch.tensor(starts)[:, None] + torch.arange(count)
    keys, values = pair_of(batch, count)
    cache.write(1, cache.slots(rows, positions), keys, values)
    expected = torch.zeros_like(cache.block)
    for number, (row, start) in enumerate(zip(rows.tolist(), starts, strict=True)):
        expected[1, 0, row, :, start : start + count] = keys[number]
        expected[1, 1, row, :, start : start + count] = values[number]
    assert torch.equal(cache.block, expected)


def test_a_written_token_is_seen_through_the_views_of_its_layer():
    cache = KVCache(CONFIG, rows=2, length=4)
    keys, values = pair_of(1, 1)
    cache.write(0, cache.slots(torch.tensor([1]), torch.tensor([[3]])), keys, values)
    assert torch.equal(cache.keys[0][1, :, 3], keys[0, :, 0])
    assert torch.equal(cache.values[0][1, :, 3], values[0, :, 0])
    assert not cache.keys[1].any()


def test_copying_leaves_later_positions_of_the_target_alone():
    cache = KVCache(CONFIG, rows=2, length=4)
    cache.block[:, :, 0] = 1.0
    cache.block[:, :, 1] = 2.0
    cache.copy_row(0, 1, 3)
    assert cache.block[:, :, 1, :, :3].eq(1.0).all()
    assert cache.block[:, :, 1, :, 3].eq(2.0).all()


def test_swapping_exchanges_the_first_positions_only():
    cache = KVCache(CONFIG, rows=3, length=4)
    for row in range(3):
        cache.block[:, :, row] = float(row)
    cache.swap_rows(0, 2, 2)
    assert cache.block[0, 0, :, 0, :, 0].tolist() == [[2, 2, 0, 0], [1, 1, 1, 1], [0, 0, 2, 2]]
