"""Policies beside the models of transformers that have the same weights."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from trainers.policies.native import NativePolicy
from trainers.policies.native_config import NativeConfig

SHAPE = {
    "vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 128,
}  # fmt: skip
PEERS = {"qwen3": (Qwen3Config, Qwen3ForCausalLM), "llama": (LlamaConfig, LlamaForCausalLM)}


def peer_and_policy(family, **options):
    config_class, model_class = PEERS[family]
    torch.manual_seed(0)
    peer = model_class(config_class(**SHAPE, **options)).eval()
    policy = NativePolicy(
        NativeConfig.from_hf(peer.config.to_dict() | {"architectures": [model_class.__name__]})
    ).eval()
    policy.load(dict(peer.state_dict()))
    return peer, policy
