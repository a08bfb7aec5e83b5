"""The arithmetic of a normalised moving average."""

from trainers.algorithms import AlgorithmRow

EWMA = AlgorithmRow(
    "correction", "proximal = ewma",
    "theta_prox = sum beta^(t-k) theta_k / sum beta^(t-k), beta = W / (W + 2); from theta again where masks "
    "leave < 0.9",
    "PPO-EWMA, revised: arXiv 2605.12070 (when in a step it begins again: ours)",
    "third party", "the two sums, in float64",
)  # fmt: skip


def ewma_update(total: float, beta: float) -> tuple[float, float]:
    """The new sum of the weights beta^(t-k), and the newest value's share in the average.

    `total` is the sum before the newest value. The average moves towards the newest value by that share.
    """
    total = beta * total + 1.0
    return total, 1.0 / total
