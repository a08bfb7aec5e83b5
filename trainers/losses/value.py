"""The loss of a critic."""

import torch
from torch import Tensor

from trainers.algorithms import AlgorithmRow

VALUE = AlgorithmRow(
    "loss", "value",
    "max((V - R)^2, (V_old + clip(V - V_old, -c, c) - R)^2) / 2, R = A + V_old (of `algorithm = \"ppo\"`'s "
    "critic; not a choice of `loss`)",
    "OpenAI baselines `ppo2`, verl `compute_value_loss`", "source", "the formula in float64, token by token",
)  # fmt: skip


def value_loss(values_N: Tensor, targets_N: Tensor, old_N: Tensor, clip: float = 0.0) -> Tensor:
    """max((V - R)^2, (V_old + clip(V - V_old, -c, c) - R)^2) / 2, float [N]; with c = 0 (V - R)^2 / 2.

    A value that has moved towards its target by more than c since the batch was valued has no gradient (PPO's
    clipping, as in OpenAI baselines and verl). Only `values_N` has a gradient.
    """
    errors_N = (values_N - targets_N) ** 2
    if clip:
        near_N = old_N + (values_N - old_N).clamp(-clip, clip)
        errors_N = torch.maximum(errors_N, (near_N - targets_N) ** 2)
    return errors_N / 2
