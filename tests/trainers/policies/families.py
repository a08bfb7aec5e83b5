"""Tiny models of many families with random weights, as transformers makes them."""

from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

_SHAPE = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_ROPE = {"rope_type": "default", "rope_theta": 10_000.0}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}


@dataclass(frozen=True)
class Family:
    """A family as transformers calls it, and what its tiny model has beyond the common shape."""

    kind: str
    options: dict[str, Any] = field(default_factory=dict)
    packed: bool = True
    """Whether its rows can be packed."""


FAMILIES = {
    "qwen2": Family("qwen2"),
    "qwen3": Family("qwen3"),
    "qwen3_moe": Family("qwen3_moe", _EXPERTS | {"norm_topk_prob": True, "mlp_only_layers": [], "decoder_sparse_step": 1}),
    "qwen3_5": Family(
        "qwen3_5_text",
        {
            "layer_types": ["linear_attention", "full_attention"],
            "linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
        },
        packed=False,
    ),
    "llama3": Family(
        "llama",
        {
            "rope_parameters": _ROPE | {
                "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
            },
        },
    ),
    "mistral": Family("mistral", {"sliding_window": 7}),
    "gemma3": Family(
        "gemma3_text",
        {"sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"], "query_pre_attn_scalar": 8},
    ),
    "gemma2": Family(
        "gemma2",
        {"sliding_window": 5, "query_pre_attn_scalar": 8, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0},
    ),
    "phi3": Family("phi3"),
    "glm4": Family("glm4", {"attention_bias": True}),
    "gpt_oss": Family("gpt_oss", {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 6}),
    "deepseek_v3": Family(
        "deepseek_v3",
        {
            "num_key_value_heads": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1,
            "moe_intermediate_size": 16, "first_k_dense_replace": 1, "q_lora_rank": 16, "kv_lora_rank": 16,
            "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 12,
        },
    ),
    "olmo2": Family("olmo2"),
    "smollm3": Family("smollm3", {"no_rope_layer_interval": 2}),
    "granite": Family("granite", {"logits_scaling": 2.0, "embedding_multiplier": 1.5, "residual_multiplier": 0.5, "attention_multiplier": 0.2}),
    "granitemoehybrid": Family(
        "granitemoehybrid",
        {
            "layer_types": ["mamba", "attention"], "num_local_experts": 4, "num_experts_per_tok": 2,
            "shared_intermediate_size": 16, "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_n_groups": 1,
            "mamba_chunk_size": 16,
        },
        packed=False,
    ),
    "mamba2": Family("mamba2", {"num_heads": 8, "head_dim": 8, "state_size": 8, "n_groups": 1, "chunk_size": 16}, packed=False),
    "llama4": Family(
        "llama4_text",
        {
            "num_local_experts": 4, "num_experts_per_tok": 1, "intermediate_size_mlp": 32, "interleave_moe_layer_step": 1,
            "attention_chunk_size": 16,
        },
        packed=False,
    ),
    "phi3_longrope": Family(
        "phi3",
        {
            "rope_parameters": _ROPE | {
                "rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [4.0] * 4,
                "original_max_position_embeddings": 16,
            },
            "original_max_position_embeddings": 16,
        },
    ),
}  # fmt: skip
"""At least one of each kind of attention, experts, positions and bounds."""

_HEADS = {"hidden_size": 128, "head_dim": 32}
"""vLLM's attention on CPUs wants heads of this size."""
SERVED: dict[str, dict[str, Any]] = {
    **dict.fromkeys(
        ("qwen2", "qwen3", "qwen3_moe", "llama3", "mistral", "gemma2", "gemma3", "phi3", "glm4", "olmo2", "smollm3"),
        _HEADS,
    ),
    "granite": _HEADS,
}  # fmt: skip
"""The families that vLLM 0.32's CPU build serves, with the options that it needs. It has no experts for gpt-oss, needs
an image processor for Qwen3.5, and computes DeepSeek's latent attention and experts otherwise than transformers."""


def tiny_model(name: str, seed: int = 0, **options: Any) -> Any:
    """A tiny model of a family, in evaluation mode."""
    return model_of(FAMILIES[name], seed, **options)


def model_of(family: Family, seed: int = 0, **options: Any) -> Any:
    """The same for any family."""
    config = AutoConfig.for_model(family.kind, **_SHAPE | family.options | options)
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            # Matrices begin so small, and biases, sinks and norms at 0 or 1, that a mistake would not show.
            if parameter.dim() > 1:
                parameter.mul_(6)
            elif "A_log" not in parameter_name and "dt_bias" not in parameter_name:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model
