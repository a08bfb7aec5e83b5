import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harnessgym.errors import PolicyError
from tests.trainers.peers import PEERS, SHAPE, peer_and_policy
from trainers.policies.kv_cache import KVCache
from trainers.policies.native_config import NativeConfig
from trainers.policy import token_logprobs


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", PEERS)
def test_logits_equal_transformers(family, tied):
    peer, policy = peer_and_policy(
        family, tie_word_embeddings=tied, rope_parameters={"rope_type": "default", "rope_theta": 5e5}
    )
    ids = torch.randint(0, 97, (3, 40))
    with torch.no_grad():
        assert (peer(ids).logits - policy(ids)).abs().max() < 1e-5


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.booleans(), st.integers(0, 5))
def test_cached_hidden_states_do_not_depend_on_how_a_sequence_is_split(parts, contiguous, offset):
    _, policy = peer_and_policy("qwen3")
    ids = torch.randint(0, 97, (3, sum(parts)), generator=torch.Generator().manual_seed(sum(parts)))
    cache = KVCache(policy.config, rows=9, length=64)
    rows = slice(offset, offset + 3) if contiguous else torch.tensor([offset + 2, 8, offset])
    start, hidden = 0, []
    for part in parts:
        hidden.append(
            policy.forward_cached(ids[:, start : start + part], torch.full((3,), start), cache, rows)
        )
        start += part
    with torch.no_grad():
        assert (policy.logits(torch.cat(hidden, 1)) - policy(ids)).abs().max() < 1e-5


def test_cached_sequences_of_different_lengths_and_right_padding():
    _, policy = peer_and_policy("qwen3")
    lengths = [3, 11, 7]
    ids = torch.randint(0, 97, (3, 12))
    cache = KVCache(policy.config, rows=3, length=32)
    policy.forward_cached(ids[:, :11], torch.zeros(3, dtype=torch.long), cache, torch.arange(3))
    hidden = policy.forward_cached(ids[range(3), lengths][:, None], torch.tensor(lengths), cache, slice(0, 3))
    for row, length in enumerate(lengths):
        with torch.no_grad():
            expected = policy(ids[row : row + 1, : length + 1])[0, -1]
            assert (policy.logits(hidden[row, 0]) - expected).abs().max() < 1e-5


def test_cache_rows_are_copied_and_swapped():
    _, policy = peer_and_policy("llama")
    cache = KVCache(policy.config, rows=3, length=8)
    ids = torch.randint(0, 97, (2, 5))
    policy.forward_cached(ids, torch.zeros(2, dtype=torch.long), cache, slice(0, 2))
    first, second = cache.block[:, :, 0, :, :5].clone(), cache.block[:, :, 1, :, :5].clone()
    cache.copy_row(0, 2, 5)
    cache.swap_rows(0, 1, 5)
    assert torch.equal(cache.block[:, :, 0, :, :5], second)
    assert torch.equal(cache.block[:, :, 1, :, :5], first)
    assert torch.equal(cache.block[:, :, 2, :, :5], first)
    assert torch.equal(cache.keys[1][2, :, :5], first[1, 0])
    assert torch.equal(cache.values[1][2, :, :5], first[1, 1])


def test_token_logprobs_are_those_of_the_tempered_softmax():
    logits, ids = torch.randn(2, 6, 11), torch.randint(0, 11, (2, 6))
    found = token_logprobs(logits, ids, temperature=0.7)
    expected = (logits / 0.7).log_softmax(-1)
    assert found[:, 0].eq(0).all()
    assert all(
        torch.isclose(found[b, t], expected[b, t - 1, ids[b, t]]) for b in range(2) for t in range(1, 6)
    )


@pytest.mark.parametrize(
    "option",
    [
        {"architectures": ["MambaForCausalLM"]},
        {"use_sliding_window": True},
        {"rope_scaling": {"type": "linear"}},
        {"rope_parameters": {"rope_type": "yarn"}},
        {"rope_parameters": {"partial_rotary_factor": 0.5}},
        {"partial_rotary_factor": 0.5},
        {"attention_bias": True},
        {"mlp_bias": True},
        {"hidden_act": "gelu"},
        {"quantization_config": {"quant_method": "fp8"}},
    ],
)
def test_what_is_not_computed_is_refused(option):
    with pytest.raises(PolicyError, match="not supported"):
        NativeConfig.from_hf(SHAPE | option)
