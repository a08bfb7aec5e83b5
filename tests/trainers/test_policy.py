import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from harnessgym.errors import PolicyError
from trainers.kv_cache import KVCache
from trainers.policy import (
    Policy,
    PolicyConfig,
    load_policy,
    load_weights,
    published_weights,
    save_policy,
    token_logprobs,
)

SHAPE = {
    "vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 128,
}  # fmt: skip
PEERS = {"qwen3": (Qwen3Config, Qwen3ForCausalLM), "llama": (LlamaConfig, LlamaForCausalLM)}


def peer_and_policy(family, **options):
    config_class, model_class = PEERS[family]
    torch.manual_seed(0)
    peer = model_class(config_class(**SHAPE, **options)).eval()
    policy = Policy(PolicyConfig.from_hf(peer.config.to_dict() | {"architectures": [model_class.__name__]})).eval()
    load_weights(policy, dict(peer.state_dict()))
    return peer, policy


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", PEERS)
def test_logits_equal_transformers(family, tied):
    peer, policy = peer_and_policy(
        family, tie_word_embeddings=tied, rope_parameters={"rope_type": "default", "rope_theta": 5e5}
    )
    ids = torch.randint(0, 97, (3, 40))
    with torch.no_grad():
        assert (peer(ids).logits - policy(ids)).abs().max() < 1e-5


@pytest.mark.parametrize("family", PEERS)
def test_a_saved_policy_is_read_by_transformers_and_back(family, tmp_path):
    _, policy = peer_and_policy(family, tie_word_embeddings=True)
    save_policy(policy, tmp_path)
    peer = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    again = load_policy(tmp_path)
    ids = torch.randint(0, 97, (2, 30))
    with torch.no_grad():
        assert (peer(ids).logits - policy(ids)).abs().max() < 1e-5
        assert torch.equal(again(ids), policy(ids))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.booleans(), st.integers(0, 5))
def test_cached_hidden_states_do_not_depend_on_how_a_sequence_is_split(parts, contiguous, offset):
    _, policy = peer_and_policy("qwen3")
    ids = torch.randint(0, 97, (3, sum(parts)), generator=torch.Generator().manual_seed(sum(parts)))
    cache = KVCache(policy.config, rows=9, length=64)
    rows = slice(offset, offset + 3) if contiguous else torch.tensor([offset + 2, 8, offset])
    start, hidden = 0, []
    for part in parts:
        hidden.append(policy.forward_cached(ids[:, start : start + part], torch.full((3,), start), cache, rows))
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


def test_published_weights_restore_the_policy_bit_by_bit():
    _, policy = peer_and_policy("qwen3")
    other = Policy(policy.config)
    load_weights(other, published_weights(policy))
    assert all(torch.equal(a, b) for a, b in zip(policy.state_dict().values(), other.state_dict().values(), strict=True))


@pytest.mark.parametrize("damage", ["missing", "misshaped"])
def test_weights_that_do_not_fit_leave_the_policy_alone(damage):
    _, policy = peer_and_policy("qwen3")
    before = published_weights(policy)
    weights = {name: torch.zeros_like(tensor) for name, tensor in before.items()}
    if damage == "missing":
        del weights["model.norm.weight"]
    else:
        weights["model.norm.weight"] = torch.zeros(3)
    with pytest.raises(PolicyError, match="norm"):
        load_weights(policy, weights)
    assert all(torch.equal(tensor, before[name]) for name, tensor in published_weights(policy).items())


def test_token_logprobs_are_those_of_the_tempered_softmax():
    logits, ids = torch.randn(2, 6, 11), torch.randint(0, 11, (2, 6))
    found = token_logprobs(logits, ids, temperature=0.7)
    expected = (logits / 0.7).log_softmax(-1)
    assert found[:, 0].eq(0).all()
    assert all(torch.isclose(found[b, t], expected[b, t - 1, ids[b, t]]) for b in range(2) for t in range(1, 6))


@pytest.mark.parametrize(
    "option",
    [
        {"architectures": ["MambaForCausalLM"]},
        {"use_sliding_window": True},
        {"rope_scaling": {"type": "linear"}},
        {"rope_parameters": {"rope_type": "yarn"}},
    ],
)
def test_what_is_not_computed_is_refused(option):
    with pytest.raises(PolicyError, match="not supported"):
        PolicyConfig.from_hf(SHAPE | option)


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(PolicyError, match=r"config\.json is missing"):
        load_policy(tmp_path)
    _, policy = peer_and_policy("llama")
    save_policy(policy, tmp_path)
    raw = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(raw | {"intermediate_size": 50}))
    with pytest.raises(PolicyError, match="has shape"):
        load_policy(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(PolicyError, match="cannot be read"):
        load_policy(tmp_path)
