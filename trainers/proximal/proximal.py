"""The contract of a proximal policy that needs forward passes with other weights, before the update's own;
and the functions that exchange weights. In each process they act on its own part of a sharded policy.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor

from harnessgym.tokens import FloatArray
from harnessgym.traces.trajectories import Row
from trainers.policy import Policy
from trainers.update import UpdateMetrics


class Proximal(Protocol):
    """A proximal policy. Every process has one, and all processes call its methods together."""

    def logprobs(self, rows: Sequence[Row]) -> list[FloatArray]:
        """Logprobs of the trained tokens of each row, float32 [T]; the values of other tokens are not
        used.
        """
        ...

    def stepped(self, metrics: UpdateMetrics) -> None:
        """Take note of a step. Called after each one."""
        ...

    def state(self) -> dict[str, Any] | None:
        """The state for a checkpoint, in the leader, as copies; None if it has none."""
        ...

    def load(self, state: dict[str, Any] | None) -> None:
        """Load a state; without one, start from the policy's weights."""
        ...


def parts(policy: Policy) -> list[Tensor]:
    """The part of each parameter in this process, not copied."""
    for module in policy.modules():
        if hasattr(module, "reshard"):  # a forward pass leaves some modules unsharded
            module.reshard()  # type: ignore[operator]
    return [_local(parameter) for parameter in policy.parameters()]


def copies(policy: Policy, device: str | None = None) -> list[Tensor]:
    """Copies of `parts`, on `device` if it is given."""
    return [part.to(device or part.device, copy=True) for part in parts(policy)]


@contextmanager
def having(policy: Policy, other: Sequence[Tensor]) -> Iterator[None]:
    """Give the policy other weights, as `parts`, and restore its own afterwards, bit for bit."""
    own = copies(policy)
    put(policy, other)
    try:
        yield
    finally:
        put(policy, own)


@torch.no_grad()
def put(policy: Policy, weights: Sequence[Tensor]) -> None:
    """Copy weights, as `parts`, into the policy."""
    for part, weight in zip(parts(policy), weights, strict=True):
        part.copy_(weight)


def _local(parameter: Tensor) -> Tensor:
    whole: Any = parameter
    part: Tensor = (whole.to_local() if hasattr(whole, "to_local") else whole).detach()
    return part
