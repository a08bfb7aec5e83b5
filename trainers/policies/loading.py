"""Loads a policy from a Hugging Face folder, as the kind that computes it."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from harnessgym.errors import PolicyError
from harnessgym.run_config.run import Implementation
from trainers.policies.native import NativeConfig, NativePolicy
from trainers.policies.native_weights import HEAD
from trainers.policy import Policy

_WEIGHTS, _INDEX = "model.safetensors", "model.safetensors.index.json"


def load_policy(
    folder: Path, implementation: Implementation = "auto", *, checkpointing: bool = False
) -> Policy:
    """Load a policy to train, in float32.

    `auto` is `native` for the architectures that it computes, else `transformers`. With `checkpointing` the
    backward pass computes each block again, so that memory holds the activations of one block.
    Raises `PolicyError` if a file is missing, tensors do not fit, or the implementation does not compute the
    architecture.
    """
    raw = read_config(folder)
    if implementation == "auto":
        implementation = "native" if is_native(raw) else "transformers"
    if implementation == "native":
        policy: Policy = load_native(folder)
    else:
        # Importing transformers and a model's module takes seconds.
        from trainers.policies.transformers import load_transformers

        policy = load_transformers(folder)
    if checkpointing:
        policy.recompute_activations()
    return policy


def is_native(raw: dict[str, Any]) -> bool:
    """Whether the native policy computes the model of a `config.json`."""
    try:
        NativeConfig.from_hf(raw)
    except (PolicyError, KeyError, TypeError, ValueError):
        return False
    return True


def load_native(folder: Path, dtype: torch.dtype = torch.float32) -> NativePolicy:
    """Load a native policy. Raises `PolicyError` if a file is missing or tensors do not fit, or if it does
    not compute the architecture.
    """
    raw = read_config(folder)
    weights = _read_weights(folder)
    # The default of a missing value differs between versions of transformers: the tensors decide.
    if raw.get("tie_word_embeddings") is None:
        raw["tie_word_embeddings"] = HEAD not in weights
    policy = NativePolicy(NativeConfig.from_hf(raw, str(folder / "config.json")))
    policy.load(weights)
    return policy.to(dtype)


def read_config(folder: Path) -> dict[str, Any]:
    """The `config.json` of a model folder. Raises `PolicyError` if there is none."""
    path = folder / "config.json"
    if not path.is_file():
        raise PolicyError(f"No policy at {folder}: config.json is missing. Give a Hugging Face model folder.")
    try:
        raw: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise PolicyError(f"{path} cannot be read: {error}. Restore the file.") from error
    return raw


def _read_weights(folder: Path) -> dict[str, Tensor]:
    names = [_WEIGHTS]
    try:
        if (folder / _INDEX).is_file() and not (folder / _WEIGHTS).exists():
            index = json.loads((folder / _INDEX).read_text())["weight_map"]
            names = sorted(set(index.values()))
        weights: dict[str, Tensor] = {}
        for name in names:
            weights |= load_file(folder / name)
    except (OSError, SafetensorError, ValueError, KeyError) as error:
        raise PolicyError(
            f"The weights at {folder}/{_WEIGHTS} cannot be read: {error}. Restore the file."
        ) from error
    return weights
