"""The clipped surrogate of PPO and its children."""

import torch
from torch import Tensor


def clipped_surrogate(log_ratio_N: Tensor, advantages_N: Tensor, clip_low: float = 0.2, clip_high: float = 0.28) -> Tensor:
    """-min(rho A, clip(rho, 1 - clip_low, 1 + clip_high) A) with rho = pi / pi_old, per token.

    PPO (arXiv 1707.06347) with the asymmetric range of DAPO (arXiv 2503.14476); the gradient flows through `log_ratio_N`.
    """
    ratio = log_ratio_N.exp()
    return -torch.minimum(ratio * advantages_N, ratio.clamp(1 - clip_low, 1 + clip_high) * advantages_N)


def clipped_tokens(log_ratio_N: Tensor, advantages_N: Tensor, clip_low: float = 0.2, clip_high: float = 0.28) -> Tensor:
    """Bool [N]: the tokens whose gradient the clip cuts."""
    ratio = log_ratio_N.exp()
    return ((advantages_N > 0) & (ratio > 1 + clip_high)) | ((advantages_N < 0) & (ratio < 1 - clip_low))
