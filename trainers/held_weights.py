"""Weights that are held beside the policy's own, in the place of which they score tokens.

In each process of a sharded policy they are its part of them.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from trainers.policy import Policy
from trainers.world import World


class HeldWeights:
    """Other weights for the policy. All processes make one, and call its methods, together."""

    def __init__(
        self,
        policy: Policy,
        world: World,
        weights: Mapping[str, Tensor] | None = None,
        device: str | None = None,
    ) -> None:
        """Hold the policy's current weights or, if given, Hugging Face tensors, which only the leader needs
        to have. They are on `device`, or on the policy's.

        Raises `PolicyError` if the tensors do not fit.
        """
        self.policy = policy
        self.world = world
        self._device = device
        self._parts: list[Tensor] = []
        if weights is None:
            self.take_policy()
        else:
            leads = world.rank == 0
            self._take(policy.state_dict_of(weights) if leads else {})

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Give the policy these weights, and restore its own afterwards, bit for bit."""
        own = copies(self.policy)
        _put(self.policy, self._parts)
        try:
            yield
        finally:
            _put(self.policy, own)

    def take_policy(self) -> None:
        """Hold the policy's current weights from now on."""
        self._parts = copies(self.policy, self._device)

    @torch.no_grad()
    def move_towards_policy(self, share: float) -> None:
        """Move each weight towards the policy's current one, by a share of the way."""
        for held, part in zip(self._parts, _parts(self.policy), strict=True):
            held.lerp_(part.to(held.device), share)

    def state(self) -> dict[str, Tensor]:
        """These weights as a `state_dict()` of the policy, whole and in main memory, in the leader."""
        with self.in_place():
            if self.world.size > 1:
                from trainers.shards import gather_weights

                return gather_weights(self.policy)
            return {name: tensor.to("cpu", copy=True) for name, tensor in self.policy.state_dict().items()}

    def load(self, state: dict[str, Tensor]) -> None:
        """Hold the leader's `state` from now on."""
        self._take(state)

    def _take(self, state: dict[str, Tensor]) -> None:
        # The state is distributed by loading it into the policy, whose own weights are then restored.
        own = copies(self.policy)
        if self.world.size > 1:
            from trainers.shards import scatter_weights

            scatter_weights(self.policy, state)
        else:
            self.policy.load_state_dict(state)
        self._parts = copies(self.policy, self._device)
        _put(self.policy, own)


def _parts(policy: Policy) -> list[Tensor]:
    """The part of each parameter in this process, not copied."""
    for module in policy.modules():
        if hasattr(module, "reshard"):  # a forward pass leaves some modules unsharded
            module.reshard()  # type: ignore[operator]
    return [_local(parameter) for parameter in policy.parameters()]


def copies(policy: Policy, device: str | None = None) -> list[Tensor]:
    """Copies of this process's part of each parameter, on `device` if it is given."""
    return [part.to(device or part.device, copy=True) for part in _parts(policy)]


@torch.no_grad()
def _put(policy: Policy, weights: list[Tensor]) -> None:
    for part, weight in zip(_parts(policy), weights, strict=True):
        part.copy_(weight)


def _local(parameter: Tensor) -> Tensor:
    whole: Any = parameter
    part: Tensor = (whole.to_local() if hasattr(whole, "to_local") else whole).detach()
    return part
