"""The policy under training with its optimizer: whole in one process, or in shards over several.

Every process has a `Trainee`. What the leader asks of its own, the followers do with it: they wait in `follow` for the name and
arguments of its calls. So an algorithm reads the same for any number of processes.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from harnessgym.run_config import RunConfig
from harnessgym.tokens import FloatArray
from harnessgym.traces.trajectories import Row
from trainers.checkpoint import RandomState
from trainers.policy import Policy, load_policy, load_weights, packed_weights, published_weights
from trainers.update import GradientAccumulation, UpdateMetrics, make_optimizer, policy_update
from trainers.update_settings import settings_of
from trainers.world import ALONE, World

State = tuple[dict[str, Tensor], dict[str, Any], tuple[RandomState, ...]]
"""Weights under their Hugging Face names, the optimizer's state, the generators of each process by rank."""


class Trainee:
    """One process's part of the policy and its optimizer. Calls are the leader's; `follow` is for the others."""

    def __init__(self, config: RunConfig, world: World = ALONE) -> None:
        self.settings = settings_of(config)
        self.world = world
        world.take_device()
        torch.manual_seed(config.seed + world.rank)
        self.policy: Policy = load_policy(Path(config.policy.path))
        if world.size > 1:
            from trainers.shards import shard

            shard(self.policy, world)
        else:
            self.policy.to(world.device)
        self.optimizer = make_optimizer(self.policy, self.settings)
        self._gradients: GradientAccumulation | None = None

    def follow(self) -> None:
        """Do what the leader does until it calls `dismiss`."""
        while order := self.world.heard():
            name, *arguments = order
            getattr(self, name)(*arguments)

    def dismiss(self) -> None:
        """Let the followers go."""
        self.world.lead()

    def update(self, rows: Sequence[Row], advantages: Sequence[float | FloatArray]) -> UpdateMetrics:
        """One optimizer step on a batch; see `policy_update`."""
        self.world.lead("update", rows, advantages)
        return policy_update(self.policy, self.optimizer, rows, advantages, self.settings, world=self.world)

    def begin(self) -> None:
        """Begin a step whose batch comes in parts; see `GradientAccumulation`."""
        self.world.lead("begin")
        self._gradients = GradientAccumulation(self.policy, self.optimizer, self.settings, self.world)

    def add(self, rows: Sequence[Row], advantages: Sequence[float | FloatArray]) -> None:
        """Add a part to the step that was begun."""
        self.world.lead("add", rows, advantages)
        assert self._gradients is not None
        self._gradients.add(rows, advantages)

    def step(self) -> UpdateMetrics:
        """Take the step that was begun."""
        self.world.lead("step")
        assert self._gradients is not None
        return self._gradients.step()

    def state(self) -> State:
        """All that a checkpoint needs. Weights are copies in main memory; the optimizer's may change with the next step."""
        self.world.lead("state")
        randoms = tuple(self.world.everyones(RandomState.here()))
        if self.world.size == 1:
            weights, optimizer = published_weights(self.policy), self.optimizer.state_dict()
            return {name: tensor.cpu() for name, tensor in weights.items()}, optimizer, randoms
        from trainers.shards import gather

        weights, optimizer = gather(self.policy, self.optimizer)
        return published_weights(self.policy, weights), optimizer, randoms

    def load(
        self,
        weights: dict[str, Tensor] | None = None,
        optimizer: dict[str, Any] | None = None,
        randoms: tuple[RandomState, ...] = (),
    ) -> None:
        """Go on from these weights and, if given, from this optimizer state and these generators.

        A process whose generators are not among them keeps its own: torch's begins with the run's seed plus its rank.
        """
        self.world.lead("load")
        if self.world.size == 1:
            load_weights(self.policy, weights or {})
            if optimizer is not None:
                self.optimizer.load_state_dict(optimizer)
        else:
            from trainers.shards import scatter

            packed = packed_weights(self.policy, weights) if weights is not None else {}
            stepped = self.world.shared(optimizer is not None and bool(optimizer["state"]))
            scatter(self.policy, self.optimizer, packed, (optimizer or {}) if stepped else None)
        randoms = self.world.shared(randoms)
        if self.world.rank < len(randoms):
            randoms[self.world.rank].restore()
