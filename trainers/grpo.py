"""Asynchronous GRPO (arXiv 2402.03300) in plain torch, top to bottom.

Take the next complete groups, compute each rollout's advantages within its group, and take one step with the
run's loss and corrections. The step becomes a checkpoint, and its weights a new policy version
(`trainers.learner`). Rollouts continue in the meantime under older versions; η limits their age.

The policy may be sharded over several processes (`trainers.trained_policy`); this is the code of their
leader.

A reference policy or a teacher may add to rewards, to advantages or to the loss (`trainers.reference`).
"""

from collections.abc import Iterable

import numpy as np
import torch

from harnessgym.run_config.run import RunConfig
from harnessgym.run_folder import RunFolder
from harnessgym.store import TraceStore
from trainers.advantages.channels import channels_of
from trainers.advantages.estimator import Estimator, make_estimator
from trainers.advantages.guided import GuidedEstimator
from trainers.batch import Batch, LoadedGroup, gives_signal, group_part, join, make_batch
from trainers.learner import Learner, TrainerSettings, in_processes
from trainers.mini_batches import means, mini_batches
from trainers.trained_policy import TrainedPolicy
from trainers.world import World


def train(settings: TrainerSettings) -> None:
    """Train until the run has all its steps, resuming where an earlier trainer of this run stopped."""
    in_processes(settings, take_part)


def take_part(folder: RunFolder, config: RunConfig, world: World) -> None:
    """The work of each process of the trainer: the leader trains, the others follow."""
    torch.set_num_threads(config.supervisor.threads)
    trained_policy = TrainedPolicy(config, world, folder.versions)
    if world.rank > 0:
        trained_policy.follow()
        return
    with (
        TraceStore.open(folder.store_url(), synchronous=config.store.synchronous) as store,
        Learner(folder, config, store, trained_policy, Grpo(config, store, trained_policy)) as learner,
    ):
        learner.resume()
        while learner.step < config.trainer.steps:
            learner.train_step(learner.arriving())
        learner.settle()
    trained_policy.dismiss()


class Grpo:
    """Takes one optimizer step per batch, with advantages relative to each group."""

    def __init__(self, config: RunConfig, store: TraceStore, trained_policy: TrainedPolicy) -> None:
        self.config = config
        self._of_rewards = make_estimator(config, store, trained_policy)
        self.channels = channels_of(self._of_rewards)
        kl, distillation = trained_policy.settings.kl, trained_policy.settings.distillation
        self._has_teacher = distillation is not None
        self._guided: GuidedEstimator | None = None
        if (kl is not None and kl.use == "reward") or (
            distillation is not None and not (distillation.in_loss and distillation.rewards)
        ):
            self._guided = GuidedEstimator(self._of_rewards, trained_policy)
        self.estimator: Estimator = self._guided or self._of_rewards

    def has_signal(self, group: LoadedGroup) -> bool:
        """Whether any of its tokens has an advantage other than zero. A KL penalty does not count."""
        if self._has_teacher:
            return any(row.mask.any() for rows in group.rows for row in rows)
        return gives_signal(self._of_rewards, group)

    def train_on(self, groups: Iterable[LoadedGroup], learner: Learner) -> tuple[Batch, dict[str, float]]:
        """Step on a batch. A batch without a signal changes nothing and still makes a version."""
        batch, metrics = (self._streamed if self.config.trainer.stream else self._at_once)(groups, learner)
        return batch, metrics | (self._guided.metrics() if self._guided is not None else {})

    def _at_once(self, groups: Iterable[LoadedGroup], learner: Learner) -> tuple[Batch, dict[str, float]]:
        """Step on the whole batch, or on its parts in turn."""
        shuffled = self.config.trainer.reward_shuffle
        shuffle = np.random.default_rng([self.config.seed, learner.step]) if shuffled else None
        chain = learner.chain()
        kept = self.config.filter.steps_kept
        batch = make_batch(
            list(groups), learner.version, chain, self.estimator, shuffle, kept, all_groups=self._has_teacher
        )
        if not batch.rows:
            return batch, {}
        policy = learner.trained_policy
        if not policy.settings.several:
            ages = learner.ages(batch.rows, chain)
            return batch, policy.update(batch.rows, batch.advantages, ages).as_dict()
        # The proximal policy and the references are the same for all steps on the batch.
        proximal = policy.recomputed(batch.rows) if policy.settings.proximal == "recompute" else None
        references = policy.reference_scores(batch.rows)
        steps = []
        for part in mini_batches(batch.rows, policy.settings, [self.config.seed, learner.step]):
            metrics = policy.update(
                [batch.rows[at] for at in part],
                [batch.advantages[at] for at in part],
                proximal=None if proximal is None else [proximal[at] for at in part],
                references=references.part(part),
            )
            steps.append(metrics.as_dict())
        return batch, means(steps)

    def _streamed(self, groups: Iterable[LoadedGroup], learner: Learner) -> tuple[Batch, dict[str, float]]:
        """Step on the batch, adding gradients group by group as they arrive."""
        chain = learner.chain()
        parts = []
        trained_policy = learner.trained_policy
        kept = self.config.filter.steps_kept
        trained_policy.begin()
        for group in groups:
            advantages = self.estimator(group.scored)
            parts.append(
                group_part(group, advantages, learner.version, chain, kept, all_groups=self._has_teacher)
            )
            if parts[-1].rows:
                trained_policy.add(parts[-1].rows, parts[-1].advantages, learner.ages(parts[-1].rows, chain))
        batch = join(parts)
        return batch, trained_policy.step().as_dict() if batch.rows else {}
