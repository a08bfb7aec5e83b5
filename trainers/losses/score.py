"""Losses of the form weight times log pi, where the weight has no gradient: no token is ever clipped away."""

from torch import Tensor

from trainers.algorithms import AlgorithmRow
from trainers.losses.tokens import Tokens

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
