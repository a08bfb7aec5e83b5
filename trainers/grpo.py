"""Asynchronous GRPO (arXiv 2402.03300) in plain torch, top to bottom.

Take the next complete groups, give each rollout its advantages within its group, take one step on the loss
and with the corrections that the run names; the step becomes a checkpoint, and its weights a new policy
version (`trainers.learner`). Rollouts go on meanwhile under older versions; η bounds how much older.

The policy may lie in shards over several processes (`trainers.trained_policy`); this is what their leader
does.

Left out: a KL penalty to a reference policy, several steps per batch.
"""

from collections.abc import Iterable

import numpy as np
import torch

from harnessgym.run_config.run import RunConfig
from harnessgym.run_folder import RunFolder
from harnessgym.store import TraceStore
from trainers.advantages.channels import channels_of
from trainers.advantages.estimator import make_estimator
from trainers.batch import Batch, LoadedGroup, gives_signal, join, make_batch, share_of
from trainers.learner import Learner, TrainerSettings, in_processes
from trainers.trained_policy import TrainedPolicy
from trainers.update import UpdateMetrics
from trainers.world import World


def train(settings: TrainerSettings) -> None:
    """Train until the run has had all its steps, resuming where an earlier trainer of this run stopped."""
    in_processes(settings, take_part)


def take_part(folder: RunFolder, config: RunConfig, world: World) -> None:
    """What each process of the trainer does: the leader trains, the others follow."""
    torch.set_num_threads(config.supervisor.threads)
    trainee = TrainedPolicy(config, world, folder.versions)
    if world.rank > 0:
        trainee.follow()
        return
    with (
        TraceStore.open(folder.store_url(), synchronous=config.store.synchronous) as store,
        Learner(folder, config, store, trainee, Grpo(config, store, trainee)) as learner,
    ):
        learner.resume()
        while learner.step < config.trainer.steps:
            learner.train_step(learner.arriving())
        learner.settle()
    trainee.dismiss()


class Grpo:
    """One optimizer step on a batch, with advantages from within its groups."""

    def __init__(self, config: RunConfig, store: TraceStore, trainee: TrainedPolicy) -> None:
        self.config = config
        self.estimator = make_estimator(config, store, trainee)
        self.channels = channels_of(self.estimator)

    def teaches(self, group: LoadedGroup) -> bool:
        """Whether any of its tokens has an advantage."""
        return gives_signal(self.estimator, group)

    def teach(self, groups: Iterable[LoadedGroup], learner: Learner) -> tuple[Batch, dict[str, float]]:
        """Step on a batch; one without any signal changes nothing, and still makes a version."""
        batch, update = (self._streamed if self.config.trainer.stream else self._at_once)(groups, learner)
        return batch, {} if update is None else update.as_dict()

    def _at_once(self, groups: Iterable[LoadedGroup], learner: Learner) -> tuple[Batch, UpdateMetrics | None]:
        """Step on the whole batch."""
        shuffled = self.config.trainer.reward_shuffle
        shuffle = np.random.default_rng([self.config.seed, learner.step]) if shuffled else None
        chain = learner.chain()
        kept = self.config.filter.steps_kept
        batch = make_batch(list(groups), learner.version, chain, self.estimator, shuffle, kept)
        if not batch.rows:
            return batch, None
        return batch, learner.trainee.update(batch.rows, batch.advantages, learner.ages(batch.rows, chain))

    def _streamed(
        self, groups: Iterable[LoadedGroup], learner: Learner
    ) -> tuple[Batch, UpdateMetrics | None]:
        """The same, group by group as they arrive."""
        chain = learner.chain()
        shares = []
        trainee = learner.trainee
        kept = self.config.filter.steps_kept
        trainee.begin()
        for group in groups:
            shares.append(share_of(group, self.estimator(group.scored), learner.version, chain, kept))
            if shares[-1].rows:
                trainee.add(shares[-1].rows, shares[-1].advantages, learner.ages(shares[-1].rows, chain))
        batch = join(shares)
        return batch, trainee.step() if batch.rows else None
