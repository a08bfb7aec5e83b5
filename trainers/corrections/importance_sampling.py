"""Importance weights w = pi_prox / mu, proximal policy over behaviour policy, and their truncations."""

from typing import Literal

import torch
from torch import Tensor

from trainers.algorithms import AlgorithmRow
from trainers.losses.tokens import Tokens

TIS = AlgorithmRow(
    "correction", "tis", "min(w, cap), w = pi_prox / mu of the token, or of the rollout",
    "verl, slime, TRL", "source",
    'TRL 1.16 `GRPOTrainer`, its ratio transcribed: `token_truncate` and `sequence_truncate`',
)  # fmt: skip
MIS = AlgorithmRow(
    "correction", "mis", "w where w <= cap, else 0", "TRL; AReaL (cap 5)", "source",
    'TRL 1.16 `GRPOTrainer`, its ratio transcribed: `token_mask` and `sequence_mask`',
)  # fmt: skip
ICEPOP = AlgorithmRow(
    "correction", "icepop", "w where low <= w <= high, else 0",
    "Ring-1T, as verl and OpenRLHF have it", "source",
    'TRL 1.16 `GRPOTrainer`, its ratio transcribed: both with a floor',
)  # fmt: skip

Level = Literal["token", "sequence"]


def tis(tokens: Tokens, level: Level = "token", cap: float = 2.0) -> Tensor:
    """min(w, cap) (truncated importance sampling, as in verl and slime: cap 2)."""
    return truncated(_log_weight(tokens, level), cap)


def mis(tokens: Tokens, level: Level = "token", cap: float = 3.0) -> Tensor:
    """w where w <= cap, else 0 (masked importance sampling, as in TRL: cap 3)."""
    return _within(_log_weight(tokens, level), 0.0, cap)


def icepop(tokens: Tokens, level: Level = "token", low: float = 0.5, high: float = 5.0) -> Tensor:
    """w where low <= w <= high, else 0 (IcePop of Ring-1T; the band of verl and OpenRLHF)."""
    return _within(_log_weight(tokens, level), low, high)


def truncated(log_ratio_N: Tensor, cap: float = 2.0) -> Tensor:
    """min(exp(log_ratio), cap), without gradient."""
    return log_ratio_N.detach().exp().clamp(max=cap)


def effective_sample_size(log_ratio_N: Tensor) -> Tensor:
    """(sum w)^2 / (N sum w^2) in (0, 1], of the weights before truncation (Kish); 1 if there is no token."""
    if not log_ratio_N.numel():
        return log_ratio_N.new_ones(())
    # The result does not change when all weights are scaled: dividing by the largest prevents an overflow
    # of exp for rollouts, whose log-ratios are sums over thousands of tokens.
    scaled = (log_ratio_N.detach() - log_ratio_N.max()).exp()
    return scaled.sum().square() / (scaled.square().sum() * scaled.numel())


def _log_weight(tokens: Tokens, level: Level) -> Tensor:
    log_weight_N = tokens.log_weight
    return log_weight_N if level == "token" else tokens.rollout_sum(log_weight_N).to(log_weight_N.dtype)


def _within(log_weight_N: Tensor, low: float, high: float) -> Tensor:
    """w where low <= w <= high, else 0."""
    # The comparison is between ratios, not their logarithms, as in the reference code, so the same tokens are
    # masked at the edges of the band. A ratio that overflows to inf is outside of every band.
    weight_N = log_weight_N.exp()
    kept_N = (weight_N >= low) & (weight_N <= high)
    return torch.where(kept_N, weight_N, 0.0)
