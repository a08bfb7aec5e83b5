"""Reads and writes a policy's weights under their Hugging Face names.

The policy fuses the projections of queries, keys and values, and those of gate and up; the names here are
those of the separate tensors.
"""

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from harnessgym.errors import PolicyError
from trainers.policy import Policy, PolicyConfig

_HEAD = "lm_head.weight"


def load_policy(folder: Path, dtype: torch.dtype = torch.float32) -> Policy:
    """Load a policy from a Hugging Face folder. Raises `PolicyError` if a file is missing or tensors do not
    fit.
    """
    path = folder / "config.json"
    if not path.is_file():
        raise PolicyError(f"No policy at {folder}: config.json is missing. Give a Hugging Face model folder.")
    if (folder / "model.safetensors.index.json").is_file() and not (folder / "model.safetensors").exists():
        raise PolicyError(
            f"The weights at {folder} are in several files, which is not supported: write them as one, with "
            "transformers' save_pretrained(..., max_shard_size='1000GB')."
        )
    try:
        weights = load_file(folder / "model.safetensors")
    except (OSError, SafetensorError) as error:
        raise PolicyError(
            f"The weights at {folder}/model.safetensors cannot be read: {error}. Restore the file."
        ) from error
    raw = json.loads(path.read_text())
    # The default of a missing value differs between versions of transformers: the tensors decide.
    if raw.get("tie_word_embeddings") is None:
        raw["tie_word_embeddings"] = _HEAD not in weights
    policy = Policy(PolicyConfig.from_hf(raw, str(path)))
    load_weights(policy, weights)
    return policy.to(dtype)


def save_policy(policy: Policy, folder: Path) -> None:
    """Write `config.json` and `model.safetensors` (Hugging Face tensor names)."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(policy.config.to_hf(), indent=2) + "\n")
    save_file(published_weights(policy), folder / "model.safetensors", metadata={"format": "pt"})


def published_weights(policy: Policy, state: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
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


@torch.no_grad()
def load_weights(policy: Policy, weights: dict[str, Tensor]) -> None:
    """Copy Hugging Face tensors into the policy in place, and set its adapters, if any, to zero.

    Raises `PolicyError` naming the first tensor that is missing or misshaped; the policy is then unchanged.
    """
    by_name = _parts(policy, weights)
    state = policy.state_dict()
    for name, parts in by_name.items():
        for part, rows in zip(parts, torch.split(state[name], [len(part) for part in parts]), strict=True):
            rows.copy_(part)


def packed_weights(policy: Policy, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Hugging Face tensors in the layout of the policy's `state_dict()`; the inverse of `published_weights`.

    Raises `PolicyError` naming the first tensor that is missing or misshaped.
    """
    return {name: torch.cat(parts) for name, parts in _parts(policy, weights).items()}


def _parts(policy: Policy, weights: dict[str, Tensor]) -> dict[str, list[Tensor]]:
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
            parts = [take(prefix.replace("qkv_proj", part)) for part in ("q_proj", "k_proj", "v_proj")]
        elif name.endswith("gate_up_proj.weight"):
            parts = [take(prefix.replace("gate_up_proj", f"mlp.{part}")) for part in ("gate_proj", "up_proj")]
        elif ".lora_" in name:
            parts = [torch.zeros(target.shape, dtype=target.dtype)]
        else:
            parts = [take(_hf_name(name))]
        shape = (sum(part.shape[0] for part in parts), *parts[0].shape[1:])
        if shape != target.shape:
            raise PolicyError(
                f"Tensor {name!r} has shape {shape}, config.json says {tuple(target.shape)}: use both files "
                "of one model."
            )
        by_name[name] = parts
    if left := [name for name in weights if name not in used and not _is_redundant(name, weights)]:
        raise PolicyError(
            f"The weights have a tensor {left[0]!r}, which a policy with this config.json does not use: use "
            "both files of one model, or serve it with vLLM."
        )
    return by_name


def _is_redundant(name: str, weights: Mapping[str, Tensor]) -> bool:
    """Whether a tensor that the policy lacks follows from the others."""
    if name == _HEAD:
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
