"""Loads a policy from a Hugging Face folder, as the kind that computes it."""

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from harnessgym.errors import PolicyError
from harnessgym.run_config.run import Implementation, PackedAttention
from trainers.policies.model_folder import read_config, weight_files, why_not_native
from trainers.policies.native import NativePolicy
from trainers.policies.native_config import NativeConfig
from trainers.policies.native_weights import HEAD
from trainers.policy import Policy


def load_policy(
    folder: Path,
    implementation: Implementation = "auto",
    *,
    checkpointing: bool = False,
    attention: PackedAttention = "sdpa",
) -> Policy:
    """Load a policy to train, in float32. `attention` is that of packed rows in models of transformers.

    `auto` is `native` for the architectures that it computes, else `transformers`. With `checkpointing` the
    backward pass computes each block again, so that memory holds the activations of one block.
    Raises `PolicyError` if a file is missing, tensors do not fit, or the implementation does not compute the
    architecture.
    """
    raw = read_config(folder)
    if _native(implementation, raw):
        policy: Policy = load_native(folder)
    else:
        # Importing transformers and a model's module takes seconds.
        from trainers.policies.transformers import load_transformers

        policy = load_transformers(folder, attention=attention)
    if checkpointing:
        policy.recompute_activations()
    return policy


def load_served(
    folder: Path,
    implementation: Implementation = "auto",
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Policy:
    """Load a policy to serve, as `load_policy` chooses it. Raises `PolicyError` as that does, and if the
    device is not there.
    """
    if torch.device(device).type == "cuda" and not torch.cuda.is_available():
        raise PolicyError('device = "cuda": torch sees no GPU. Install a torch with CUDA, or set "cpu".')
    if _native(implementation, read_config(folder)):
        policy: Policy = load_native(folder, dtype)
    else:
        from trainers.policies.transformers import load_transformers

        policy = load_transformers(folder, dtype, packed=False)
    return policy.to(device).eval()


def load_native(folder: Path, dtype: torch.dtype = torch.float32) -> NativePolicy:
    """Load a native policy. Raises `PolicyError` if a file is missing or tensors do not fit, or if it does
    not compute the architecture.
    """
    raw = read_config(folder)
    weights = _read_weights(folder)
    # The default of a missing value differs between versions of transformers: the tensors decide.
    if raw.get("tie_word_embeddings") is None:
        raw["tie_word_embeddings"] = HEAD not in weights
    if reason := why_not_native(raw, str(folder / "config.json")):
        raise PolicyError(
            f"{reason} Our own module computes Qwen3 and Llama only: leave `implementation` out, or set "
            '"transformers".'
        )
    policy = NativePolicy(NativeConfig.from_hf(raw))
    policy.load(weights)
    return policy.to(dtype)


def _native(implementation: Implementation, raw: dict[str, Any]) -> bool:
    return implementation == "native" or (implementation == "auto" and not why_not_native(raw))


def _read_weights(folder: Path) -> dict[str, Tensor]:
    weights: dict[str, Tensor] = {}
    for path in weight_files(folder) or (folder / "model.safetensors",):
        try:
            weights |= load_file(path)
        except (OSError, SafetensorError, ValueError) as error:
            raise PolicyError(f"The weights at {path} cannot be read: {error}. Restore the file.") from error
    return weights
