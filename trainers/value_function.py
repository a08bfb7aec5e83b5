"""The critic: a value function V over the tokens of a rollout, for PPO, its loss and its training.

The critic is a separate transformer. It starts as a copy of the policy, with a head of one number instead of
the vocabulary. It does not share the policy's trunk: published weights stay an ordinary Hugging Face model
that any engine loads, the value loss does not change the policy, and each has its own learning rate and
clipping. The cost is the memory and the passes of a second model. The head starts at zero, so the first
values are 0 and the first advantages equal the returns.

`ValueFunction` is one process's part of the critic and its optimizer. All processes call each of its methods
together (`trainers.trained_policy`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from harnessgym.tokens import FloatArray, IdArray
from harnessgym.traces.trajectories import Row
from trainers.algorithms import AlgorithmRow
from trainers.checkpoint import staged
from trainers.gradients import backpropagate
from trainers.losses.normalisation import token_weights
from trainers.optimizer import clip_and_step, make_optimizer
from trainers.packing import Routing, micro_batches
from trainers.policy import Policy
from trainers.ppo_settings import CriticSettings
from trainers.scoring import SHORT_PASS, per_token
from trainers.update_settings import UpdateSettings
from trainers.world import ALONE, World

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


class Critic(nn.Module):
    """The value of the state before a token: one number from the trunk's last hidden state."""

    def __init__(self, start: Policy) -> None:
        """Copy the weights of a policy that is not sharded."""
        super().__init__()
        self.trunk = start.trunk()
        self.head = nn.Linear(start.hidden_size, 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    @property
    def blocks(self) -> tuple[nn.Module, ...]:
        """Its layers."""
        return self.trunk.blocks

    def values(self, rows: Sequence[IdArray], masks: Sequence[IdArray]) -> Tensor:
        """V before each token with mask 1, row after row, float32 [M]; see `Policy.hidden`."""
        hidden_ME = self.trunk.features(self.trunk.hidden(rows, masks)[0])
        return (torch.mv(hidden_ME, self.head.weight[0]) + self.head.bias).float()


@dataclass(frozen=True, slots=True)
class ValueMetrics:
    """Measurements of one step of the critic, before its weights change."""

    value_loss: float
    value_error: float
    """Root of the mean squared difference between a token's value and its target."""
    value_clipped: float
    """Share of tokens whose gradient the clipping cut."""
    value_grad_norm: float
    """L2 norm before clipping."""

    def as_dict(self) -> dict[str, float]:
        """The metrics by name."""
        return {name: float(getattr(self, name)) for name in self.__dataclass_fields__}


class ValueFunction:
    """The critic under training."""

    def __init__(
        self, start: Policy, settings: CriticSettings, update: UpdateSettings, world: World = ALONE
    ) -> None:
        """`start` must not be sharded. The critic shares the micro-batches and normalisation of `update`."""
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
        """V before each trained token, float32 [T] per row; 0 elsewhere."""

        @torch.no_grad()
        def compute(ids: Sequence[IdArray], masks: Sequence[IdArray], _: Routing) -> FloatArray:
            values: FloatArray = self._values(ids, masks).cpu().numpy()
            return values

        return per_token(
            rows,
            compute,
            self.update_settings.micro_batch_tokens,
            self.critic.trunk.pass_size,
            self.world,
        )

    def update(
        self, rows: Sequence[Row], targets: Sequence[FloatArray], old: Sequence[FloatArray]
    ) -> ValueMetrics:
        """Take one optimizer step towards `targets`; `old` are the values before the first step on this
        batch. Both are float32 [T] per row.

        The batch must have a trained token. Raises `TrainerError` if the gradient is not finite (the weights
        are then unchanged).
        """
        self.optimizer.zero_grad(set_to_none=True)
        weights = token_weights(rows, self.update_settings.normalisation)
        parts = self.world.parts([len(row.ids) for row in rows])
        limit = self.update_settings.micro_batch_tokens
        size = self.critic.trunk.pass_size
        plans = [micro_batches([[rows[index].ids] for index in part], limit, size) for part in parts]
        mine = parts[self.world.rank]
        stats = []
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
            # As in `trainers.gradients`, first the gradient with respect to the values, then through the
            # critic: the first part also says which tokens the clipping cut.
            leaf_N = values_N.detach().requires_grad_()
            loss = (value_loss(leaf_N, targets_N, old_N, self.settings.clip) * weights_N).sum()
            (gradient_N,) = torch.autograd.grad(loss, leaf_N)
            backpropagate(values_N, gradient_N)
            errors_N = (leaf_N.detach() - targets_N).double()
            cut = int(((gradient_N == 0) & (errors_N != 0)).sum())
            stats.append((float(loss.detach()), float((errors_N**2).sum()), cut, len(errors_N)))
        for _ in range(max(map(len, plans)) - len(plans[self.world.rank])):
            self._idle()
        loss_sum, squares, clipped, tokens = np.sum(
            [part for own in self.world.all_gather(stats) for part in own], axis=0
        )
        norm = clip_and_step(self.critic, self.optimizer, self.settings.max_grad_norm)
        return ValueMetrics(float(loss_sum), float(np.sqrt(squares / tokens)), float(clipped / tokens), norm)

    def state(self) -> dict[str, Any] | None:
        """The state for a checkpoint, as copies, in the leader; None in the others."""
        if self.world.size == 1:
            weights = self.critic.state_dict()
            optimizer = self.optimizer.state_dict()
        else:
            from trainers.shards import gather

            weights, optimizer = gather(self.critic, self.optimizer)
        state: dict[str, Any] = staged({"weights": dict(weights), "optimizer": optimizer})
        return state if self.world.rank == 0 else None

    def load(self, state: dict[str, Any] | None) -> None:
        """Load the leader's state; without one, keep the current weights."""
        if not self.world.broadcast(state is not None):
            return
        weights, optimizer = (state["weights"], state["optimizer"]) if state is not None else ({}, {})
        if self.world.size == 1:
            self.critic.load_state_dict(weights)
            # A copy, because the optimizer would keep the given tensors and change them in place.
            self.optimizer.load_state_dict(staged(optimizer))
            return
        from trainers.shards import scatter

        stepped = self.world.broadcast(bool(optimizer.get("state")))
        scatter(self.critic, self.optimizer, weights, optimizer if stepped else None)

    def _values(self, ids: Sequence[IdArray], masks: Sequence[IdArray]) -> Tensor:
        """V before each token with mask 1, row after row, float32 [N]."""
        return self.critic.values(ids, masks)

    def _idle(self) -> None:
        """Take part in a pass of the other processes and add a gradient of zero."""
        (self._values(*SHORT_PASS).sum() * 0.0).backward()  # type: ignore[no-untyped-call]
