"""One process's part of the critic and its optimizer. All processes call each of these together
(`trainers.trained_policy`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from harnessgym.tokens import FloatArray, IdArray
from harnessgym.traces.trajectories import Row
from trainers.checkpoint_writer import staged
from trainers.critic import Critic
from trainers.gradients import per_token
from trainers.losses.normalisation import token_weights
from trainers.losses.value import value_loss
from trainers.packing import micro_batches, pack
from trainers.policy import Policy
from trainers.ppo_settings import CriticSettings
from trainers.update import clip_and_step, make_optimizer
from trainers.update_settings import UpdateSettings
from trainers.world import ALONE, World


@dataclass(frozen=True, slots=True)
class ValueMetrics:
    """What one step of the critic did, measured before its weights changed."""

    value_loss: float
    value_error: float
    """Root of the mean squared difference between a token's value and its target."""
    value_clipped: float
    """Share of tokens whose gradient the clipping cut."""
    value_grad_norm: float
    """L2 norm before clipping."""

    def as_dict(self) -> dict[str, float]:
        """By name."""
        return {name: float(getattr(self, name)) for name in self.__dataclass_fields__}


class ValueFunction:
    """The critic under training."""

    def __init__(
        self, start: Policy, settings: CriticSettings, update: UpdateSettings, world: World = ALONE
    ) -> None:
        """`start` is whole, in no shards. Of `update` micro-batches and normalisation are the critic's,
        too.
        """
        self.settings = settings
        self.update_settings = update
        self.world = world
        self.critic = Critic(start)
        if world.size > 1:
            from trainers.shards import shard

            shard(self.critic, world)
        else:
            self.critic.to(world.device)
        self.optimizer = make_optimizer(self.critic, update.model_copy(update={"lr": settings.lr}))

    def values(self, rows: Sequence[Row]) -> list[FloatArray]:
        """V of what stands before each token, float32 [T] per row; 0 for the first token of a row, before
        which nothing is.
        """

        @torch.no_grad()
        def compute(ids: Sequence[IdArray], masks: Sequence[IdArray]) -> Tensor:
            return self._values(ids, masks)

        return per_token(
            rows, compute, self._idle_without_gradient, self.update_settings.micro_batch_tokens, self.world
        )

    def update(
        self, rows: Sequence[Row], targets: Sequence[FloatArray], old: Sequence[FloatArray]
    ) -> ValueMetrics:
        """One optimizer step towards `targets`, from the values `old` that the batch had, float32 [T] per row
        both.

        Some token must be trained. Raises `TrainerError` if the gradient is not finite (the weights are then
        unchanged).
        """
        self.optimizer.zero_grad(set_to_none=True)
        weights = token_weights(rows, self.update_settings.normalisation)
        parts = self.world.parts([len(row.ids) for row in rows])
        limit = self.update_settings.micro_batch_tokens
        plans = [micro_batches([[rows[index].ids] for index in part], limit) for part in parts]
        mine = parts[self.world.rank]
        seen = []
        for batch in plans[self.world.rank]:
            indices = [mine[place] for place in batch]
            masks = [rows[index].mask for index in indices]
            if not any(mask.any() for mask in masks):
                self._idle()
                continue
            values_N = self._values([rows[index].ids for index in indices], masks)
            targets_N, old_N, weights_N = (
                torch.from_numpy(np.concatenate([of[index][rows[index].mask != 0] for index in indices])).to(
                    values_N
                )
                for of in (targets, old, weights)
            )
            leaf_N = values_N.detach().requires_grad_()
            loss = (value_loss(leaf_N, targets_N, old_N, self.settings.clip) * weights_N).sum()
            (gradient_N,) = torch.autograd.grad(loss, leaf_N)
            values_N.backward(gradient_N)  # type: ignore[no-untyped-call]
            errors_N = (leaf_N.detach() - targets_N).double()
            cut = int(((gradient_N == 0) & (errors_N != 0)).sum())
            seen.append((float(loss.detach()), float((errors_N**2).sum()), cut, len(errors_N)))
        for _ in range(max(map(len, plans)) - len(plans[self.world.rank])):
            self._idle()
        loss_sum, squares, clipped, tokens = np.sum(
            [part for own in self.world.everyones(seen) for part in own], axis=0
        )
        norm = clip_and_step(self.critic, self.optimizer, self.settings.max_grad_norm)
        return ValueMetrics(float(loss_sum), float(np.sqrt(squares / tokens)), float(clipped / tokens), norm)

    def state(self) -> dict[str, Any] | None:
        """What a checkpoint must hold, in the leader, as copies."""
        if self.world.size == 1:
            weights = self.critic.state_dict()
            optimizer = self.optimizer.state_dict()
        else:
            from trainers.shards import gather

            weights, optimizer = gather(self.critic, self.optimizer)
        found: dict[str, Any] = staged({"weights": dict(weights), "optimizer": optimizer})
        return found if self.world.rank == 0 else None

    def load(self, state: dict[str, Any] | None) -> None:
        """Go on from a state; without one, stay. Only the leader's counts."""
        if not self.world.shared(state is not None):
            return
        weights, optimizer = (state["weights"], state["optimizer"]) if state is not None else ({}, {})
        if self.world.size == 1:
            self.critic.load_state_dict(weights)
            self.optimizer.load_state_dict(
                staged(optimizer)
            )  # it would go on with the tensors that it is given
            return
        from trainers.shards import scatter

        stepped = self.world.shared(bool(optimizer.get("state")))
        scatter(self.critic, self.optimizer, weights, optimizer if stepped else None)

    def _values(self, ids: Sequence[IdArray], masks: Sequence[IdArray]) -> Tensor:
        """Before the tokens of some rows that have mask 1, row after row, float32 [N]."""
        packed = pack(ids, self.critic.trunk.cos.device)
        before_N, _ = packed.trained(masks)
        return self.critic.values(packed, before_N)

    def _idle(self) -> None:
        """Take part in a pass of other processes: add a gradient of zero."""
        (self._nothing() * 0.0).backward()  # type: ignore[no-untyped-call]

    @torch.no_grad()
    def _idle_without_gradient(self) -> None:
        self._nothing()

    def _nothing(self) -> Tensor:
        """A pass over two tokens."""
        two = np.zeros(2, np.int32)
        return self._values([two], [np.array([0, 1], np.int32)]).sum()
