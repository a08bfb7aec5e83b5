"""Settings of training by LoRA, `[trainer.lora]` of a run."""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from harnessgym.config import Config

Projection = Literal["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
PROJECTIONS: tuple[Projection, ...] = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""The linear layers of a decoder block, as Hugging Face names them."""


class LoraSection(Config):
    """Low-rank adapters in place of the weights (LoRA, arXiv 2106.09685): W + alpha / rank · B A, where A and B are trained."""

    rank: int = Field(0, ge=0)
    """Inner dimension of A and B; 0 trains all weights."""
    alpha: float = Field(32.0, gt=0)
    """What adapters add counts alpha / rank."""
    targets: Literal["all-linear"] | tuple[Projection, ...] = "all-linear"
    """Layers that get adapters, by their Hugging Face names. all-linear: all of q_proj, k_proj, v_proj, o_proj, gate_proj,
    up_proj, down_proj; never embeddings or the vocabulary's projection."""
    dropout: float = 0.0
    """Must be 0: what a rollout's tokens are compared with is the policy that sampled them, and engines drop nothing."""

    @property
    def on(self) -> bool:
        """Whether adapters are trained, and nothing else."""
        return self.rank > 0

    @property
    def layers(self) -> tuple[Projection, ...]:
        """The targets one by one, in the order of the model."""
        return tuple(name for name in PROJECTIONS if self.targets == "all-linear" or name in self.targets)

    @field_validator("targets")
    @classmethod
    def _some(cls, targets: str | tuple[Projection, ...]) -> str | tuple[Projection, ...]:
        if not targets:
            raise ValueError('no layer would be trained: name some, or leave targets out for "all-linear"')
        return targets

    @field_validator("dropout")
    @classmethod
    def _none_dropped(cls, dropout: float) -> float:
        if dropout:
            raise ValueError(
                "the recorded log-probabilities are those of an engine that drops nothing, and ratios of a policy with dropout "
                "to them would be noise: leave it at 0"
            )
        return dropout

    @model_validator(mode="before")
    @classmethod
    def _rank_given(cls, given: Any) -> Any:
        if isinstance(given, Mapping) and given and "rank" not in given:
            raise ValueError("adapters need a rank, such as rank = 16; without one all weights are trained")
        return given
