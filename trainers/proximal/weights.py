"""Other weights in a policy, for a while. In every process its own part of them, where the policy lies in
shards.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from trainers.policy import Policy


def parts(policy: Policy) -> list[Tensor]:
    """Of each parameter what this process has: no copies."""
    for module in policy.modules():
        if hasattr(module, "reshard"):  # a forward pass leaves some whole
            module.reshard()  # type: ignore[operator]
    return [_local(parameter) for parameter in policy.parameters()]


def copies(policy: Policy, device: str | None = None) -> list[Tensor]:
    """The same, copied, to main memory if that is the device."""
    return [part.to(device or part.device, copy=True) for part in parts(policy)]


@contextmanager
def having(policy: Policy, other: Sequence[Tensor]) -> Iterator[None]:
    """The policy with other weights, which are `parts`; afterwards with its own again, bit by bit."""
    own = copies(policy)
    put(policy, other)
    try:
        yield
    finally:
        put(policy, own)


@torch.no_grad()
def put(policy: Policy, weights: Sequence[Tensor]) -> None:
    """Copy weights, which are `parts`, into the policy."""
    for part, weight in zip(parts(policy), weights, strict=True):
        part.copy_(weight)


def _local(parameter: Tensor) -> Tensor:
    whole: Any = parameter
    found = whole.to_local() if hasattr(whole, "to_local") else whole
    part: Tensor = found.detach()
    return part
