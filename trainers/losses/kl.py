"""Estimators of KL(pi, pi_ref) from sampled tokens, as a term of the loss (Schulman 2020).

log r = log pi_ref - log pi of the sampled token. k1 and k3 have the divergence as their mean, k2 nearly. Of
their gradients only that of k2 is in expectation the divergence's own, if pi has sampled.
"""

from torch import Tensor

from trainers.algorithms import AlgorithmRow

_SOURCE = "Schulman 2020, joschu.net/blog/kl-approx.html"
K1 = AlgorithmRow(
    "loss", "kl.estimator = k1", "c (-log r), r = pi_ref / pi", _SOURCE, "source",
    "the formula in float64, token by token", "token",
)  # fmt: skip
K2 = AlgorithmRow(
    "loss", "kl.estimator = k2", "c (log r)^2 / 2, r = pi_ref / pi", _SOURCE, "source",
    "the formula in float64, token by token", "token",
)  # fmt: skip
K3 = AlgorithmRow(
    "loss", "kl.estimator = k3", "c (r - 1 - log r), r = pi_ref / pi", f"{_SOURCE}; GRPO, arXiv 2402.03300",
    "source", "TRL 1.16 `GRPOTrainer`, `beta`", "rollout",
    "as in TRL, corrections do not weigh it; groups without a signal are left out of the step, and it does "
    "not act on them.",
)  # fmt: skip

_MAX_LOG_RATIO = 60.0
"""Larger log r are clamped to this: exp would overflow."""


def k1(logprobs_N: Tensor, reference_N: Tensor) -> Tensor:
    """-log r, float [N]."""
    return logprobs_N - reference_N


def k2(logprobs_N: Tensor, reference_N: Tensor) -> Tensor:
    """(log r)^2 / 2, float [N]."""
    return (reference_N - logprobs_N).square() / 2


def k3(logprobs_N: Tensor, reference_N: Tensor) -> Tensor:
    """r - 1 - log r, float [N]: never negative."""
    log_ratio_N = (reference_N - logprobs_N).clamp(max=_MAX_LOG_RATIO)
    return log_ratio_N.exp() - 1 - log_ratio_N


ESTIMATORS = {"k1": k1, "k2": k2, "k3": k3}
"""By the names in a run file."""
