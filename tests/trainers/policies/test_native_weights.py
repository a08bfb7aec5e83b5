import json

import pytest
import torch
from transformers import AutoModelForCausalLM

from harnessgym.errors import PolicyError
from tests.trainers.peers import PEERS, peer_and_policy
from trainers.policies.loading import load_policy
from trainers.policies.native import NativePolicy
from trainers.policies.native_weights import save_policy


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


def test_published_weights_restore_the_policy_bit_by_bit():
    _, policy = peer_and_policy("qwen3")
    other = NativePolicy(policy.config)
    other.load(policy.published())
    assert all(
        torch.equal(a, b)
        for a, b in zip(policy.state_dict().values(), other.state_dict().values(), strict=True)
    )


@pytest.mark.parametrize("damage", ["missing", "misshaped"])
def test_weights_that_do_not_fit_leave_the_policy_alone(damage):
    _, policy = peer_and_policy("qwen3")
    before = policy.published()
    weights = {name: torch.zeros_like(tensor) for name, tensor in before.items()}
    if damage == "missing":
        del weights["model.norm.weight"]
    else:
        weights["model.norm.weight"] = torch.zeros(3)
    with pytest.raises(PolicyError, match="norm"):
        policy.load(weights)
    assert all(torch.equal(tensor, before[name]) for name, tensor in policy.published().items())


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


@pytest.mark.parametrize("family", PEERS)
@pytest.mark.parametrize("tied", [True, False])
def test_what_is_published_is_packed_again_as_it_was(family, tied):
    _, policy = peer_and_policy(family, tie_word_embeddings=tied)
    packed, state = policy.state_dict_of(policy.published()), policy.state_dict()
    assert packed.keys() == state.keys()
    assert all(torch.equal(packed[name], tensor) for name, tensor in state.items())


@pytest.mark.parametrize("tied", [True, False])
def test_without_a_word_in_the_config_the_head_is_tied_if_it_has_no_weights(tied, tmp_path):
    _, policy = peer_and_policy("llama", tie_word_embeddings=tied)
    save_policy(policy, tmp_path)
    raw = json.loads((tmp_path / "config.json").read_text())
    del raw["tie_word_embeddings"]
    (tmp_path / "config.json").write_text(json.dumps(raw))
    assert load_policy(tmp_path).config.tie_word_embeddings is tied


@pytest.mark.parametrize(
    ("name", "refused"),
    [
        ("model.layers.0.self_attn.q_proj.bias", True),
        ("lm_head.weight", True),
        ("model.layers.0.self_attn.rotary_emb.inv_freq", False),
    ],
)
def test_a_tensor_that_nothing_computes_with_is_refused_by_name(name, refused):
    _, policy = peer_and_policy("llama", tie_word_embeddings=True)
    weights = policy.published() | {name: torch.ones(3)}
    if refused:
        with pytest.raises(PolicyError, match=name):
            policy.load(weights)
    else:
        policy.load(weights)


def test_a_copy_of_the_embedding_as_the_tied_head_is_read():
    _, policy = peer_and_policy("llama", tie_word_embeddings=True)
    weights = policy.published()
    policy.load(weights | {"lm_head.weight": weights["model.embed_tokens.weight"].clone()})


def test_weights_in_several_files_are_read(tmp_path):
    peer, policy = peer_and_policy("llama")
    save_policy(policy, tmp_path / "one")
    peer.save_pretrained(tmp_path / "several", max_shard_size="10KB")
    assert len(list((tmp_path / "several").glob("*.safetensors"))) > 1
    expected = load_policy(tmp_path / "one").state_dict()
    assert all(
        torch.equal(tensor, expected[name])
        for name, tensor in load_policy(tmp_path / "several").state_dict().items()
    )


def test_an_index_that_names_no_files_is_refused(tmp_path):
    _, policy = peer_and_policy("llama")
    save_policy(policy, tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "model-00001-of-00001.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(PolicyError, match="weight_map"):
        load_policy(tmp_path)
