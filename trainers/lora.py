"""LoRA (arXiv 2106.09685) by peft: adapters on the policy's linear layers are trained, and nothing else.

What is published are whole weights, W + alpha / rank · B A, merged in float32 into copies; so engines and
other tools see an ordinary model, and the weights that the adapters stand on, the base, never change. A
checkpoint holds the adapters, and a digest of the base that they belong to.

peft takes seconds to import: only who trains adapters pays for it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import xxhash
from torch import Tensor, nn

from harnessgym.errors import TrainerError
from harnessgym.run_config.trainer import LoraSection
from trainers.policy import Policy
from trainers.policy_weights import published_weights
from trainers.projections import Separate
from trainers.weights.manifest import TensorEntry

_A, _B, _BASE = ".lora_A.default.weight", ".lora_B.default.weight", ".base_layer.weight"


@dataclass(frozen=True, slots=True)
class Lora:
    """The adapters of a policy."""

    settings: LoraSection
    base: str
    """xxh3-128 of all weights that they stand on, in hex."""

    @property
    def scale(self) -> float:
        """What B A counts."""
        return self.settings.alpha / self.settings.rank

    def merged(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """A policy's `state_dict()` with its adapters merged, in main memory: W + alpha / rank · B A, as peft
        merges.

        Always computed on the CPU, so that a resumed trainer finds the bits that were published, whatever its
        device.
        """
        found = {name: tensor.cpu() for name, tensor in state.items()}
        for name in [name for name in found if name.endswith(_BASE)]:
            layer = name.removesuffix(_BASE)
            found[name] = found[name] + found.pop(layer + _B) @ found.pop(layer + _A) * self.scale
        return found

    def state(self, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
        """What a checkpoint holds: copies of the adapters among a policy's tensors, what they are, and
        what they stand on.
        """
        own = {
            name: tensor.detach().to("cpu", copy=True)
            for name, tensor in tensors.items()
            if name.endswith((_A, _B))
        }
        return {"settings": self._shape(), "base": self.base, "tensors": own}

    def tensors_of(self, state: Mapping[str, Any] | None) -> dict[str, Tensor]:
        """The adapters that a checkpoint holds. Raises `TrainerError` if they are not such as these, or of
        another base.
        """
        if state is None:
            raise TrainerError(
                "The run trains adapters (trainer.lora), and there are none to go on from: its newest "
                "checkpoint is one of "
                "whole weights, or is gone, and adapters cannot be told from the weights that were "
                "published. Put the "
                "checkpoint back, or begin a new run from a version (`harnessgym weights export`)."
            )
        if differences := _differences(state["settings"], self._shape()):
            raise TrainerError(
                f"The checkpoint's adapters have other settings than trainer.lora: {differences}. Resume "
                "with those of the "
                "checkpoint, or begin a new run."
            )
        if state["base"] != self.base:
            raise TrainerError(
                f"The checkpoint's adapters stand on other weights (xxh3 {state['base']}) than those at "
                "policy.path "
                f"({self.base}). Put back the model folder that the run began with."
            )
        found: dict[str, Tensor] = state["tensors"]
        return found

    def _shape(self) -> dict[str, Any]:
        return {
            "rank": self.settings.rank,
            "alpha": self.settings.alpha,
            "targets": list(self.settings.layers),
        }


def adapt(policy: Policy, settings: LoraSection, seed: int) -> None:
    """Give a whole policy adapters that do not change it yet, and freeze everything else.

    A is drawn from the seed alone, so that every process draws the same; no generator advances.
    """
    from peft import LoraConfig, inject_adapter_in_model

    lora = Lora(settings, _digest(published_weights(policy)))
    config = policy.config
    layers = settings.layers
    kv = config.num_key_value_heads * config.head_dim
    qkv = {"q_proj": config.num_attention_heads * config.head_dim, "k_proj": kv, "v_proj": kv}
    gate_up = dict.fromkeys(("gate_proj", "up_proj"), config.intermediate_size)
    for block in policy.blocks:
        block.self_attn.qkv_proj = _separate(block.self_attn.qkv_proj, qkv, layers)
        block.gate_up_proj = _separate(block.gate_up_proj, gate_up, layers)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        inject_adapter_in_model(
            LoraConfig(
                r=settings.rank, lora_alpha=settings.alpha, target_modules=list(layers), lora_dropout=0.0
            ),
            policy,
        )
    policy.lora = lora


def _separate(layer: nn.Module, rows: Mapping[str, int], targets: Sequence[str]) -> nn.Module:
    """The projections of a fused layer, if any of them is a target."""
    return Separate(layer, rows) if isinstance(layer, nn.Linear) and set(rows) & set(targets) else layer


def _digest(weights: Mapping[str, Tensor]) -> str:
    found = xxhash.xxh3_128()
    for name in sorted(weights):
        entry = TensorEntry.of(weights[name])
        found.update(f"{name} {entry.dtype} {entry.shape} {entry.xxh3}\n".encode())
    return found.hexdigest()


def _differences(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name} was {theirs.get(name)!r} and is {ours[name]!r}"
        for name in ours
        if theirs.get(name) != ours[name]
    )
