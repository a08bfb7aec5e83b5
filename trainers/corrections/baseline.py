"""What an update takes from a whole batch: VCPO's baseline with the least variance (OPOB), and the learning
rate of one step.

A rule changes the learning rate for this step only.
"""

import torch
from torch import Tensor, nn

from harnessgym.errors import TrainerError
from trainers.algorithms import AlgorithmRow
from trainers.corrections.importance_sampling import effective_sample_size
from trainers.update_settings import EssRule, UpdateSettings

MINIMUM_VARIANCE = AlgorithmRow(
    "correction", "baseline = minimum_variance", "sum w_i (R_i - b) g_i, b = sum w_i^2 |g_i|^2 R_i / sum "
                                                 "w_i^2 |g_i|^2",
    "VCPO (OPOB)", "source", "its step against one with the advantages R - b, from each rollout's own "
                             "gradient",
)  # fmt: skip


class MinimumVariance:
    """Collects the score of each rollout and computes the gradient of sum (R_i - b) G_i.

    G_i is the gradient of log pi over the rollout's tokens, each multiplied by its weight and its share in
    the loss; b = sum |G_i|^2 R_i / sum |G_i|^2. With one weight w_i per rollout this is
    sum w_i^2 |g_i|^2 R_i / sum w_i^2 |g_i|^2, as in VCPO's code (weights after truncation). Needs two buffers
    of the gradient's size.
    """

    def __init__(self, module: nn.Module) -> None:
        self._parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self._rewarded = [torch.zeros_like(parameter) for parameter in self._parameters]
        self._score = [torch.zeros_like(parameter) for parameter in self._parameters]
        self._terms: list[tuple[float, float, float]] = []
        """|G_i|^2, R_i and the rollout's loss at an advantage of 1."""

    def add(self, reward: float, loss: float) -> None:
        """Add a rollout's -G_i from the parameters' gradients, and clear these gradients."""
        gradients = [parameter.grad for parameter in self._parameters]
        squares = sum(float(grad.double().square().sum()) for grad in gradients if grad is not None)
        # b is known only after the last rollout. The final gradient is linear in b,
        # so the two sums of R_i G_i and of G_i are enough and no G_i has to be kept.
        for rewarded, score, gradient in zip(self._rewarded, self._score, gradients, strict=True):
            if gradient is not None:
                rewarded.add_(gradient, alpha=reward)
                score.add_(gradient)
        self._terms.append((squares, reward, loss))
        for parameter in self._parameters:
            parameter.grad = None

    @property
    def value(self) -> float:
        """b; 0 while no rollout has a gradient."""
        return best_baseline(
            [squares for squares, _, _ in self._terms], [reward for _, reward, _ in self._terms]
        )

    @property
    def loss(self) -> float:
        """The batch's loss at this baseline."""
        value = self.value
        return sum((reward - value) * loss for _, reward, loss in self._terms)

    def apply(self) -> None:
        """Set the parameters' gradients to the gradient at this baseline."""
        value = self.value
        for parameter, rewarded, score in zip(self._parameters, self._rewarded, self._score, strict=True):
            parameter.grad = rewarded.sub_(score, alpha=value)


def best_baseline(squares_R: list[float], rewards_R: list[float]) -> float:
    """sum s R / sum s, the b that minimises sum s (R - b)^2; 0 if all s are 0."""
    total = sum(squares_R)
    if not total:
        return 0.0
    return sum(square * reward for square, reward in zip(squares_R, rewards_R, strict=True)) / total


def reward_of(rollout_id: str, advantages_N: Tensor) -> float:
    """The advantage that all trained tokens of a rollout share. Raises `TrainerError` if they have
    several.
    """
    values = set(advantages_N.tolist())
    if len(values) != 1:
        raise TrainerError(
            f"Rollout {rollout_id}: baseline = 'minimum_variance' needs one reward per rollout, and its "
            f"tokens have {len(values)} different ones. Choose an advantage that gives each rollout one "
            "number, or set baseline = 'none'."
        )
    return float(values.pop())


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
