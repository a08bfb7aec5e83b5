"""Linear layers of the policy: several of one input in one product, or each a module of its own, which can
have adapters.
"""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Separate(nn.Module):
    """What was one projection as several, side by side: equal up to rounding."""

    def __init__(self, fused: nn.Linear, rows: Mapping[str, int]) -> None:
        """`rows` are the outputs of each, by name, in order; weights are copied."""
        super().__init__()
        for name, weight in zip(rows, torch.split(fused.weight.detach(), list(rows.values())), strict=True):
            part = nn.Linear(fused.in_features, len(weight), bias=False, device="meta")
            part.weight = nn.Parameter(weight.clone())
            self.add_module(name, part)

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] to [..., sum of the outputs]."""
        return torch.cat([part(x) for part in self.children()], dim=-1)


def projected(layer: nn.Module, x: Tensor) -> Tensor:
    """`layer(x)`, but of a plain linear layer without what calling a module costs: engines do this for
    every token.
    """
    return F.linear(x, layer.weight) if type(layer) is nn.Linear else layer(x)
