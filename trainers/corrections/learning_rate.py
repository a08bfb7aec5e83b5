"""The learning rate of one step. A rule changes it for this step only."""

from torch import Tensor

from trainers.algorithms import AlgorithmRow
from trainers.corrections.importance_sampling import effective_sample_size
from trainers.update_settings import EssRule, UpdateSettings

ESS = AlgorithmRow(
    "correction", "lr_rule = ess", "lr sqrt(min(1, rho / rho_0)), rho = (sum w)^2 / (R sum w^2), w of "
                                   "rollouts, unclipped",
    "VCPO", "source", "the formula in float64, rollout by rollout",
)  # fmt: skip


def step_size(settings: UpdateSettings, log_weight_R: Tensor) -> float:
    """The learning rate for rollouts with these log importance weights: float [R], log(pi / mu) summed over
    each rollout's tokens.

    VCPO's rule: lr (min(1, rho / rho_0))^(1/2), rho = ESS / R = (sum w)^2 / (R sum w^2), with the weights
    before truncation.
    """
    if not isinstance(settings.lr_rule, EssRule):
        return settings.lr
    share = float(effective_sample_size(log_weight_R))
    return float(settings.lr * min(1.0, share / settings.lr_rule.target) ** settings.lr_rule.power)
