"""The baseline that gives a weighted policy gradient the least variance (VCPO's OPOB)."""

import torch
from torch import Tensor, nn

from harnessgym.errors import TrainerError
from trainers.algorithms import AlgorithmRow

MINIMUM_VARIANCE = AlgorithmRow(
    "correction", "baseline = minimum_variance", "sum w_i (R_i - b) g_i, b = sum w_i^2 |g_i|^2 R_i / sum "
                                                 "w_i^2 |g_i|^2",
    "VCPO (OPOB)", "source", "its step against one with the advantages R - b, from each rollout's own "
                             "gradient",
)  # fmt: skip


class MinimumVariance:
    """Takes the score of one rollout after another, and makes of all of them the gradient of sum (R_i - b)
    G_i.

    G_i is the gradient of the log pi of the rollout's tokens, each times its weight and its share in the
    loss; b = sum |G_i|^2 R_i / sum |G_i|^2. With one weight w_i for a rollout that is sum w_i^2 |g_i|^2 R_i /
    sum w_i^2 |g_i|^2, as in VCPO's code (the weights are those of the gradient, after truncation). Memory:
    two buffers of the gradient's size.
    """

    def __init__(self, module: nn.Module) -> None:
        self._parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self._rewarded = [torch.zeros_like(parameter) for parameter in self._parameters]
        self._score = [torch.zeros_like(parameter) for parameter in self._parameters]
        self._terms: list[tuple[float, float, float]] = []
        """|G_i|^2, R_i and the rollout's loss at an advantage of 1."""

    def add(self, reward: float, loss: float) -> None:
        """Take what lies in the parameters' gradients: -G_i of a rollout with this reward; they are none
        afterwards.
        """
        found = [parameter.grad for parameter in self._parameters]
        squares = sum(float(gradient.double().square().sum()) for gradient in found if gradient is not None)
        for rewarded, score, gradient in zip(self._rewarded, self._score, found, strict=True):
            if gradient is not None:
                rewarded.add_(gradient, alpha=reward)
                score.add_(gradient)
        self._terms.append((squares, reward, loss))
        for parameter in self._parameters:
            parameter.grad = None

    @property
    def value(self) -> float:
        """B. 0 while no rollout has a gradient."""
        return best_baseline(
            [squares for squares, _, _ in self._terms], [reward for _, reward, _ in self._terms]
        )

    @property
    def loss(self) -> float:
        """Of the batch, at that baseline."""
        value = self.value
        return sum((reward - value) * loss for _, reward, loss in self._terms)

    def give(self) -> None:
        """Put the gradient at that baseline into the parameters."""
        value = self.value
        for parameter, rewarded, score in zip(self._parameters, self._rewarded, self._score, strict=True):
            parameter.grad = rewarded.sub_(score, alpha=value)


def best_baseline(squares_R: list[float], rewards_R: list[float]) -> float:
    """Sum s R / sum s: the b at which sum s (R - b)^2 is smallest. 0 where all s are."""
    whole = sum(squares_R)
    return (
        sum(square * reward for square, reward in zip(squares_R, rewards_R, strict=True)) / whole
        if whole
        else 0.0
    )


def reward_of(rollout_id: str, advantages_N: Tensor) -> float:
    """The one number that all trained tokens of a rollout have as their advantage. Raises `TrainerError`
    if it is not one.
    """
    found = set(advantages_N.tolist())
    if len(found) != 1:
        raise TrainerError(
            f"Rollout {rollout_id}: baseline = 'minimum_variance' takes one reward for a rollout, and its "
            "tokens have "
            f"{len(found)} different ones. Choose an advantage that gives each rollout one number, or "
            "baseline = 'none'."
        )
    return float(found.pop())
