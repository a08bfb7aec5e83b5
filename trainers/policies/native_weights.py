"""The native policy's weights under their Hugging Face names.

The policy fuses the projections of queries, keys and values, and those of gate and up; the names here are
those of the separate tensors.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from harnessgym.errors import PolicyError

if TYPE_CHECKING:
    from trainers.policies.native import NativePolicy

HEAD = "lm_head.weight"
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""The linear layers of a block, in the order of the model."""


class SeparateProjections(nn.Module):
    """One fused projection as several modules, side by side: equal up to rounding. Each can have an
    adapter.
    """

    def __init__(self, fused: nn.Linear, rows: Mapping[str, int]) -> None:
        """`rows` maps each projection's name to its number of outputs, in order. Weights are copied."""
        super().__init__()
        for name, weight in zip(rows, torch.split(fused.weight.detach(), list(rows.values())), strict=True):
            part = nn.Linear(fused.in_features, len(weight), bias=False, device="meta")
            part.weight = nn.Parameter(weight.clone())
            self.add_module(name, part)

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] to [..., sum of the outputs]."""
        return torch.cat([part(x) for part in self.children()], dim=-1)


def unfuse(policy: "NativePolicy", layers: Sequence[str]) -> None:
    """Split the fused projections that have one of these layers."""
    config = policy.config
    kv = config.num_key_value_heads * config.head_dim
    qkv = {"q_proj": config.num_attention_heads * config.head_dim, "k_proj": kv, "v_proj": kv}
    gate_up = dict.fromkeys(("gate_proj", "up_proj"), config.intermediate_size)
    for block in policy.blocks:
        block.self_attn.qkv_proj = _separate(block.self_attn.qkv_proj, qkv, layers)
        block.gate_up_proj = _separate(block.gate_up_proj, gate_up, layers)


def _separate(layer: nn.Module, rows: Mapping[str, int], targets: Sequence[str]) -> nn.Module:
    """A fused layer as separate projections if one of them is a target, else the layer itself."""
    return (
        SeparateProjections(layer, rows)
        if isinstance(layer, nn.Linear) and set(rows) & set(targets)
        else layer
    )


def save_policy(policy: "NativePolicy", folder: Path) -> None:
    """Write `config.json` and `model.safetensors` (Hugging Face tensor names)."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(policy.config.to_hf(), indent=2) + "\n")
    save_file(published(policy), folder / "model.safetensors", metadata={"format": "pt"})


def published(policy: "NativePolicy", state: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
    """Copies of all weights under their Hugging Face names, as policy versions store them. Adapters are
    merged.

    `state` replaces `policy.state_dict()` if the policy is sharded and has only parts of the tensors.
    """
    config = policy.config
    out = dict[str, Tensor]()
    state = policy.state_dict() if state is None else state
    state = state if policy.lora is None else policy.lora.merged(state)
    split_qkv = [
        n * config.head_dim for n in (config.num_attention_heads, *(config.num_key_value_heads,) * 2)
    ]
    for name, tensor in state.items():
        layer, _, _ = name.partition(".self_attn.") if ".self_attn." in name else name.rpartition(".")
        if name.endswith("qkv_proj.weight"):
            parts = zip(("q_proj", "k_proj", "v_proj"), tensor.split(split_qkv), strict=True)
            out |= {f"model.{layer}.self_attn.{part}.weight": value.clone() for part, value in parts}
        elif name.endswith("gate_up_proj.weight"):
            layer = name.removesuffix(".gate_up_proj.weight")
            parts = zip(("gate_proj", "up_proj"), tensor.chunk(2), strict=True)
            out |= {f"model.{layer}.mlp.{part}.weight": value.clone() for part, value in parts}
        else:
            out[_hf_name(name)] = tensor.clone()
    return out


def parts(policy: "NativePolicy", weights: Mapping[str, Tensor]) -> dict[str, list[Tensor]]:
    """For each of the policy's tensors the Hugging Face tensors that it is concatenated from.

    Raises `PolicyError` if one is missing or misshaped, or if `weights` has a tensor that the policy lacks.
    """
    used = set[str]()

    def take(name: str) -> Tensor:
        if name not in weights:
            raise PolicyError(
                f"The weights have no tensor {name!r}; is this the model that config.json describes?"
            )
        used.add(name)
        return weights[name]

    by_name: dict[str, list[Tensor]] = {}
    for name, target in policy.state_dict().items():
        prefix = "model." + name
        if name.endswith("qkv_proj.weight"):
            found = [take(prefix.replace("qkv_proj", part)) for part in ("q_proj", "k_proj", "v_proj")]
        elif name.endswith("gate_up_proj.weight"):
            found = [take(prefix.replace("gate_up_proj", f"mlp.{part}")) for part in ("gate_proj", "up_proj")]
        elif ".lora_" in name:
            found = [torch.zeros(target.shape, dtype=target.dtype)]
        else:
            found = [take(_hf_name(name))]
        shape = (sum(part.shape[0] for part in found), *found[0].shape[1:])
        if shape != target.shape:
            raise PolicyError(
                f"Tensor {name!r} has shape {shape}, config.json says {tuple(target.shape)}: use both files "
                "of one model."
            )
        by_name[name] = found
    if left := [name for name in weights if name not in used and not _is_redundant(name, weights)]:
        raise PolicyError(
            f"The weights have a tensor {left[0]!r}, which a policy with this config.json does not use: use "
            'both files of one model, or set implementation = "transformers".'
        )
    return by_name


def _is_redundant(name: str, weights: Mapping[str, Tensor]) -> bool:
    """Whether a tensor that the policy lacks follows from the others."""
    if name == HEAD:
        embedding = weights.get("model.embed_tokens.weight")
        return embedding is not None and torch.equal(weights[name], embedding)
    return name.endswith("rotary_emb.inv_freq")


def _hf_name(name: str) -> str:
    if name.startswith("lm_head"):
        return name
    name = name.replace(".base_layer", "").replace(".down_proj", ".mlp.down_proj")
    # With adapters the projections are separate modules within the fused one; see `trainers.lora`.
    name = name.replace(".qkv_proj", "").replace(".gate_up_proj", ".mlp")
    return f"model.{name}" if name.endswith(".weight") else f"model.{name}.weight"
