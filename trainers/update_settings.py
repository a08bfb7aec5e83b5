"""Settings of one optimizer step, apart from the step itself: whoever only checks a configuration needs no torch."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from trainers.losses.normalisation import Normalisation


class UpdateSettings(BaseModel):
    """How a batch changes the policy."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    lr: float = Field(4e-4, gt=0)
    """Learning rate of this step; fits the shipped policy. Pretrained models want about 1e-6."""
    clip_low: float = Field(0.2, ge=0, le=1)
    """How far below 1 the ratio to the proximal policy may fall before the gradient stops."""
    clip_high: float = Field(0.28, ge=0)
    """How far above 1 it may rise."""
    proximal: Literal["behaviour", "current"] = "behaviour"
    """The policy that ratios are clipped against: the one that sampled (PPO, which leaves no importance weight), or the one the
    step starts from (which never clips; staleness is weighted instead)."""
    tis_cap: float = Field(2.0, gt=0)
    """Largest importance weight of a token, proximal over behaviour policy."""
    max_grad_norm: float = Field(1.0, gt=0)
    """Gradients longer than this are scaled down to it."""
    normalisation: Normalisation = "token"
    """What the loss is a mean over: trained tokens, or rollouts (each the mean of its tokens)."""
    temperature: float = Field(1.0, gt=0)
    """Sampling temperature of the rows; logprobs are compared at it."""
    micro_batch_tokens: int = Field(16_384, gt=0)
    """Padded tokens per forward pass. Changes memory and rounding, nothing else."""
