"""LoRA (arXiv 2106.09685) with peft: only adapters on the policy's linear layers are trained.

Published versions have full weights, W + alpha / rank · B A, merged in float32 into copies. So engines and
other tools see an ordinary model, and the base weights under the adapters never change. A checkpoint has the
adapters and a digest of their base weights.

peft takes seconds to import, so it is imported only when adapters are trained.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import xxhash
from torch import Tensor

from harnessgym.errors import TrainerError
from harnessgym.run_config.trainer import LoraSection
from trainers.policy import Policy
from trainers.weights.manifest import TensorEntry

_A, _B, _BASE = ".lora_A.default.weight", ".lora_B.default.weight", ".base_layer.weight"


@dataclass(frozen=True, slots=True)
class Lora:
    """The adapters of a policy."""

    settings: LoraSection
    base: str
    """xxh3-128 of all base weights, in hex."""

    @property
    def scale(self) -> float:
        """The factor of B A: alpha / rank."""
        return self.settings.alpha / self.settings.rank

    def merged(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """A policy's `state_dict()` with its adapters merged, in main memory: W + alpha / rank · B A, as in
        peft.
        """
        # Always on the CPU, so that a resumed trainer gets the published bits on any device.
        merged = {name: tensor.cpu() for name, tensor in state.items()}
        for name in [name for name in merged if name.endswith(_BASE)]:
            layer = name.removesuffix(_BASE)
            merged[name] = merged[name] + merged.pop(layer + _B) @ merged.pop(layer + _A) * self.scale
        return merged

    def state(self, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
        """The state for a checkpoint: copies of the adapters among a policy's tensors, their settings, and
        the digest of their base.
        """
        own = {
            name: tensor.detach().to("cpu", copy=True)
            for name, tensor in tensors.items()
            if name.endswith((_A, _B))
        }
        return {"settings": self._shape(), "base": self.base, "tensors": own}

    def tensors_of(self, state: Mapping[str, Any] | None) -> dict[str, Tensor]:
        """The adapters of a checkpoint. Raises `TrainerError` if there are none, or if they have other
        settings or another base.
        """
        if state is None:
            raise TrainerError(
                "The run trains adapters (trainer.lora), and there are none to resume from: its newest "
                "checkpoint has full weights or is missing, and published weights do not contain the "
                "adapters. Restore the checkpoint, or begin a new run from a version (`harnessgym weights "
                "export`)."
            )
        if differences := _differences(state["settings"], self._shape()):
            raise TrainerError(
                f"The checkpoint's adapters have other settings than trainer.lora: {differences}. Resume "
                "with those of the checkpoint, or begin a new run."
            )
        if state["base"] != self.base:
            raise TrainerError(
                f"The checkpoint's adapters have other base weights (xxh3 {state['base']}) than those at "
                f"policy.path ({self.base}). Restore the model folder with which the run began."
            )
        tensors: dict[str, Tensor] = state["tensors"]
        return tensors

    def _shape(self) -> dict[str, Any]:
        return {
            "rank": self.settings.rank,
            "alpha": self.settings.alpha,
            "targets": list(self.settings.layers),
        }


def adapt(policy: Policy, settings: LoraSection, seed: int) -> None:
    """Add adapters to a policy that is not sharded, and freeze everything else. They do not change it yet: B
    is zero.
    """
    from peft import LoraConfig, inject_adapter_in_model

    layers = _targets(policy, settings)
    lora = Lora(settings, _digest(policy.published()))
    policy.unfuse(layers)
    # A depends on the seed only, so every process draws the same, and the global generator does not advance.
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        inject_adapter_in_model(
            LoraConfig(
                r=settings.rank, lora_alpha=settings.alpha, target_modules=list(layers), lora_dropout=0.0
            ),
            policy,
        )
    policy.lora = lora


def _targets(policy: Policy, settings: LoraSection) -> tuple[str, ...]:
    """The layers that get adapters. Raises `TrainerError` for a name that the policy lacks."""
    known = policy.linear_layers()
    if settings.targets == "all-linear":
        return known
    if unknown := [name for name in settings.targets if name not in known]:
        raise TrainerError(
            f"trainer.lora.targets: this policy has no linear layer {unknown[0]!r}; its blocks have "
            f"{', '.join(known)}."
        )
    return tuple(name for name in known if name in settings.targets)


def _digest(weights: Mapping[str, Tensor]) -> str:
    digest = xxhash.xxh3_128()
    for name in sorted(weights):
        entry = TensorEntry.of(weights[name])
        digest.update(f"{name} {entry.dtype} {entry.shape} {entry.xxh3}\n".encode())
    return digest.hexdigest()


def _differences(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name} was {theirs.get(name)!r} and is {ours[name]!r}"
        for name in ours
        if theirs.get(name) != ours[name]
    )
