"""Importance weights between the behaviour policy mu and the policy pi_old that the update starts from."""

from torch import Tensor


def truncated(log_ratio_N: Tensor, cap: float = 2.0) -> Tensor:
    """min(pi_old / mu, cap) per token (truncated importance sampling, as in verl and slime: cap 2). Carries no gradient."""
    return log_ratio_N.detach().exp().clamp(max=cap)


def effective_sample_size(log_ratio_N: Tensor) -> Tensor:
    """(sum w)^2 / (N sum w^2) in (0, 1], of the weights before any truncation; Kish's size as a share of N. 1 for no token."""
    if not log_ratio_N.numel():
        return log_ratio_N.new_ones(())
    scaled = (log_ratio_N.detach() - log_ratio_N.max()).exp()
    return scaled.sum().square() / (scaled.square().sum() * scaled.numel())
