"""The clipped surrogate of PPO and its variants, and losses of the form weight times log pi.

In the latter the weight has no gradient: no token is ever clipped away.
"""

import torch
from torch import Tensor

from trainers.algorithms import AlgorithmRow
from trainers.losses.tokens import Tokens

PPO = AlgorithmRow(
    "loss", "ppo", "-min(rho A, clip(rho, 1 - low, 1 + high) A), rho = pi / pi_prox; low = high = 0.2",
    "arXiv 1707.06347", "source", 'TRL 1.16 `GRPOTrainer`, `loss_type = "grpo"`', "rollout",
    'GRPO\'s mean per rollout (set normalisation = "rollout") and its KL penalty to a reference policy (set '
    'kl).',
)  # fmt: skip
DAPO = AlgorithmRow(
    "loss", "dapo", "that of ppo; low = 0.2, high = 0.28", "arXiv 2503.14476", "source",
    'TRL 1.16 `GRPOTrainer`, `loss_type = "dapo"`', "token",
    'the soft penalty for rollouts that are too long; groups of equal rewards are refilled with '
    'filter.zero_signal = "refill".',
)  # fmt: skip
DECOUPLED_PPO = AlgorithmRow(
    "loss", "decoupled_ppo",
    "that of ppo; pi_prox is not mu, and a correction weighs with pi_prox / mu (the paper's pi_prox: "
    "proximal = recompute)",
    "arXiv 2505.24298",
    "source", "AReaL's formula in float64, token by token, with its mask at 5", "token",
    'the paper\'s several steps on a batch, clipped against the policy before the first: several epochs or '
    'mini_batches, proximal = "recompute" and corrections = [{ name = "mis", cap = 5.0 }].',
)  # fmt: skip
GSPO = AlgorithmRow(
    "loss", "gspo", "-min(s A, clip(s, 1 - low, 1 + high) A), s = exp(mean_t log rho_t), as sg[s] pi / "
                    "sg[pi]",
    "arXiv 2507.18071 (its range: from memory)", "source", 'TRL 1.16 `GRPOTrainer`, '
                                                           '`importance_sampling_level = "sequence"`',
    "rollout", 'the paper\'s mean per rollout: set normalisation = "rollout". With "token" long rollouts '
               'weigh more.',
)  # fmt: skip
DPPO_TV = AlgorithmRow(
    "loss", "dppo_tv", "-rho A, but 0 where pi - mu > high (A > 0) or < -low (A < 0); + kl (log rho)^2; rho "
                       "= pi / mu",
    "arXiv 2602.04879, as prime-rl has it", "source", "the formula in float64, token by token", "token",
    "prime-rl's pull to the policy that sampled: kl = 1e-3.",
)  # fmt: skip


_MAX_LOG_RATIO = 60.0
"""Larger log-ratios are clamped to this, far beyond every clip: exp would overflow to inf, and inf times an
advantage of 0 is NaN."""


def ppo(tokens: Tokens, clip_low: float = 0.2, clip_high: float = 0.2) -> Tensor:
    """-min(rho A, clip(rho, 1 - clip_low, 1 + clip_high) A), rho = pi / pi_prox, per token (arXiv
    1707.06347).

    With `clip_high` above `clip_low` it is DAPO's (arXiv 2503.14476); with a proximal policy other than the
    one that sampled, and weights pi_prox / mu, it is decoupled PPO (arXiv 2505.24298).
    """
    return clipped_surrogate(tokens.log_ratio, tokens.advantages_N, clip_low, clip_high)


def gspo(tokens: Tokens, clip_low: float = 3e-4, clip_high: float = 4e-4) -> Tensor:
    """The clipped surrogate of s = exp(mean over the rollout's tokens of log rho), one ratio a rollout (arXiv
    2507.18071).

    Computed in its token form, sg[s] pi / sg[pi], which equals s in value and gradient if normalisation is by
    rollout and the rollout has one advantage.
    """
    # `own_N` is 0 in value and carries the gradient of the token's own logprob: the rollout's ratio decides
    # whether the token is clipped, and the gradient still flows token by token.
    log_s_N = tokens.rollout_mean(tokens.log_ratio).to(tokens.logprobs_N.dtype)
    own_N = tokens.logprobs_N - tokens.logprobs_N.detach()
    return clipped_surrogate(log_s_N + own_N, tokens.advantages_N, clip_low, clip_high)


def dppo_tv(tokens: Tokens, mask_low: float = 0.2, mask_high: float = 0.2, kl: float = 0.0) -> Tensor:
    """-rho A with rho = pi / mu, but without gradient where pi - mu > mask_high (A > 0) or pi - mu <
    -mask_low (A < 0); plus kl (log rho)^2.

    Probabilities are compared, not ratios, so a small change does not mask a rare token (DPPO, arXiv
    2602.04879, binary total variation, as in prime-rl).
    """
    change_N = tokens.logprobs_N.detach().exp() - tokens.proximal_N.exp()
    cut_N = torch.where(tokens.advantages_N > 0, change_N > mask_high, change_N < -mask_low)
    loss_N = torch.where(cut_N, 0.0, -tokens.log_ratio.clamp(max=_MAX_LOG_RATIO).exp() * tokens.advantages_N)
    return loss_N + kl * tokens.log_ratio.square()


def clipped_surrogate(log_ratio_N: Tensor, advantages_N: Tensor, clip_low: float, clip_high: float) -> Tensor:
    """-min(rho A, clip(rho, 1 - clip_low, 1 + clip_high) A) per token; the gradient flows through
    `log_ratio_N`.
    """
    ratio = log_ratio_N.clamp(max=_MAX_LOG_RATIO).exp()
    return -torch.minimum(ratio * advantages_N, ratio.clamp(1 - clip_low, 1 + clip_high) * advantages_N)


REINFORCE = AlgorithmRow(
    "loss",
    "reinforce",
    "-A log pi",
    "Williams 1992",
    "source",
    "the formula in float64, token by token",
    "token",
)
CISPO = AlgorithmRow(
    "loss", "cispo", "-sg[min(rho, cap)] A log pi, rho = pi / pi_prox", "arXiv 2506.13585", "source",
    'TRL 1.16 `GRPOTrainer`, `loss_type = "cispo"`', "token",
)  # fmt: skip
MINPRO = AlgorithmRow(
    "loss", "minpro", "-sg[clip(m_t rho_t, 1 - low, 1 + high)] A log pi, m_t = min of rho_i over i < t, m_1 "
                      "= 1",
    "arXiv 2601.22718 (m_1 and the range: ours)", "third party",
    "the formula in float64, token by token", "token",
)  # fmt: skip


def reinforce(tokens: Tokens) -> Tensor:
    """-A log pi (Williams 1992). Only corrections weight the tokens of an older policy."""
    return -tokens.advantages_N * tokens.logprobs_N


def cispo(tokens: Tokens, cap: float = 5.0) -> Tensor:
    """-sg[min(rho, cap)] A log pi, rho = pi / pi_prox (MiniMax-M1, arXiv 2506.13585; TRL calls the cap
    epsilon_high).
    """
    weight_N = tokens.log_ratio.detach().exp().clamp(max=cap)
    return -weight_N * tokens.advantages_N * tokens.logprobs_N


def minpro(tokens: Tokens, clip_low: float = 0.2, clip_high: float = 0.28) -> Tensor:
    """-sg[clip(m rho, 1 - clip_low, 1 + clip_high)] A log pi, m the smallest rho of the rollout's earlier
    tokens.

    MinPRO (arXiv 2601.22718) uses m instead of the product of all earlier ratios. The formula is taken from a
    third party's note; m = 1 for the first token and the clip range are our choices.
    """
    log_ratio_N = tokens.log_ratio.detach()
    log_prefix_N = tokens.least_before(log_ratio_N, first=0.0)
    weight_N = (log_prefix_N + log_ratio_N).exp().clamp(1 - clip_low, 1 + clip_high)
    return -weight_N * tokens.advantages_N * tokens.logprobs_N
