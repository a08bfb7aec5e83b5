"""Corrections that only mask: weights of 0 and 1, decided per rollout."""

from typing import Literal

from torch import Tensor

from trainers.algorithms import AlgorithmRow
from trainers.losses.tokens import Tokens

GEOMETRIC = AlgorithmRow(
    "correction", "geometric", "1 where low <= exp(mean_t log w_t) <= high, else 0", "SkyRL, verl", "source",
    "the formula in float64, rollout by rollout",
)  # fmt: skip
OPSM = AlgorithmRow(
    "correction", "opsm", "0 where A < 0 and mean_t (log mu - log pi) > threshold, else 1",
    "DeepSeek-V3.2; TRL, slime", "source", "TRL 1.16 `GRPOTrainer.get_off_policy_mask`",
)  # fmt: skip


def geometric(
    tokens: Tokens,
    low: float = 0.99,
    high: float = 1.01,
    against: Literal["proximal", "current"] = "proximal",
) -> Tensor:
    """1 where low <= exp(mean over the rollout's tokens of log w) <= high (as in SkyRL and verl).

    w is pi_prox / mu, or pi / mu.
    """
    log_weight_N = tokens.log_weight if against == "proximal" else tokens.log_current_weight
    mean_N = tokens.rollout_mean(log_weight_N).exp()
    return ((mean_N >= low) & (mean_N <= high)).to(log_weight_N.dtype)


def opsm(tokens: Tokens, threshold: float = 0.5) -> Tensor:
    """0 where A < 0 and the mean over the rollout's tokens of log mu - log pi is above the threshold.

    Off-policy sequence masking of DeepSeek-V3.2, as in TRL. If advantages differ within a rollout, each
    token's own sign decides.
    """
    off_policy_N = tokens.rollout_mean(-tokens.log_current_weight) > threshold
    return (~((tokens.advantages_N < 0) & off_policy_N)).to(tokens.logprobs_N.dtype)
