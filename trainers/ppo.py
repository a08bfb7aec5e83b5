"""Asynchronous PPO (arXiv 1707.06347) with a critic, in plain torch, top to bottom.

Take the next complete groups, let the critic value every token, compute advantages by GAE, step the policy
with the run's loss and corrections, and step the critic towards the returns. The step becomes a checkpoint,
and the policy's weights a new version (`trainers.learner`). The ratio's old policy is the one that sampled:
its recorded logprobs are used, and computed again only with proximal = "recompute", for AReaL's decoupled
PPO. The rollouts of a group are not compared: no group is left out, and one rollout per group is enough.

The policy and its critic may be sharded over several processes (`trainers.trained_policy`); this is the code
of their leader. The critic is in the checkpoint and is never published.

A reference policy may take from each token's reward or add to the loss, and a teacher add to advantages or to
the loss (`trainers.reference`).

Left out: a trunk shared by policy and critic (see `trainers.value_function`).
"""

from collections.abc import Iterable, Sequence
from itertools import islice

import numpy as np
import torch

from harnessgym.run_config.run import RunConfig
from harnessgym.run_folder import RunFolder
from harnessgym.scheduling.staleness import VersionChain
from harnessgym.store import TraceStore
from harnessgym.tokens import FloatArray
from harnessgym.traces.trajectories import Row
from trainers.advantages.channels import of_calls
from trainers.advantages.estimator import Float64Array
from trainers.advantages.gae import gae_of_rollout
from trainers.advantages.guided import divergences, mean_divergence, with_teacher
from trainers.advantages.steps import standardised
from trainers.batch import Batch, LoadedGroup, group_part, join, shuffled
from trainers.learner import Learner, TrainerSettings, in_processes
from trainers.mini_batches import means, mini_batches
from trainers.ppo_settings import PpoSettings, ppo_settings_of
from trainers.trained_policy import TrainedPolicy
from trainers.world import World

_EPS = 1e-8


def train(settings: TrainerSettings) -> None:
    """Train until the run has all its steps, resuming where an earlier trainer of this run stopped."""
    in_processes(settings, take_part)


def take_part(folder: RunFolder, config: RunConfig, world: World) -> None:
    """The work of each process of the trainer: the leader trains, the others follow."""
    torch.set_num_threads(config.supervisor.threads)
    settings = ppo_settings_of(config)
    trained_policy = TrainedPolicy(config, world, folder.versions, settings.critic)
    if world.rank > 0:
        trained_policy.follow()
        return
    with (
        TraceStore.open(folder.store_url(), synchronous=config.store.synchronous) as store,
        Learner(folder, config, store, trained_policy, PpoTrainer(config, settings)) as learner,
    ):
        learner.resume()
        while learner.step < config.trainer.steps:
            learner.train_step(learner.arriving())
        learner.settle()
    trained_policy.dismiss()


class PpoTrainer:
    """Takes optimizer steps of a policy and its critic, with advantages relative to the critic's values."""

    def __init__(self, config: RunConfig, settings: PpoSettings) -> None:
        self.config = config
        self.settings = settings
        self.channels = of_calls("trainer.ppo.channel", settings.channel)

    def has_signal(self, group: LoadedGroup) -> bool:
        """Whether it has a trained token. From equal rewards the critic learns to expect them."""
        return any(row.mask.any() for rows in group.rows for row in rows)

    def train_on(self, groups: Iterable[LoadedGroup], learner: Learner) -> tuple[Batch, dict[str, float]]:
        """Train both on a batch. During the critic's warm-up all advantages are zero, so the policy does not
        change.
        """
        batch_groups = self._batch_groups(groups, learner.step)
        trained_policy = learner.trained_policy
        chain = learner.chain()
        rows = [row for group in batch_groups for own in group.rows for row in own]
        values = trained_policy.values(rows)
        penalties, reference_metrics = self._penalties(rows, trained_policy)
        advantages = self._advantages(batch_groups, values, penalties)
        # The critic's targets are returns, so they use the raw advantages; whitening is for the policy only.
        targets = [advantage + value for advantage, value in zip(advantages, values, strict=True)]
        explained = explained_variance(rows, values, targets)
        if learner.step < self.settings.critic.warmup:
            advantages = [np.zeros_like(advantage) for advantage in advantages]
        elif self.settings.whiten:
            advantages = whitened(rows, advantages)
        advantages, teacher_metrics = self._with_teacher(rows, advantages, trained_policy, learner.step)
        distillation = trained_policy.settings.distillation
        in_loss = distillation is not None and distillation.in_loss
        all_groups = in_loss and learner.step >= self.settings.critic.warmup
        batch = _batch(batch_groups, advantages, learner.version, chain, all_groups=all_groups)
        ages = learner.ages(rows, chain)
        recompute = bool(batch.rows) and trained_policy.settings.proximal == "recompute"
        proximal = trained_policy.recomputed(rows) if recompute else None
        references = trained_policy.reference_scores(rows) if batch.rows else None
        policy_steps = list[dict[str, float]]()
        critic_steps = list[dict[str, float]]()
        for part in mini_batches(rows, trained_policy.settings, [self.config.seed, learner.step]):
            mine = [rows[at] for at in part]
            if batch.rows:  # otherwise no token has an advantage
                own_ages = None if ages is None else [ages[at] for at in part]
                own_proximal = None if proximal is None else [proximal[at] for at in part]
                metrics = trained_policy.update(
                    mine,
                    [advantages[at] for at in part],
                    own_ages,
                    own_proximal,
                    None if references is None else references.part(part),
                )
                policy_steps.append(metrics.as_dict())
            old = [values[at] for at in part]
            critic_steps.append(
                trained_policy.update_critic(mine, [targets[at] for at in part], old).as_dict()
            )
        measured = means(policy_steps) | means(critic_steps) | reference_metrics | teacher_metrics
        return batch, measured | {"explained_variance": explained}

    def _batch_groups(self, groups: Iterable[LoadedGroup], step: int) -> list[LoadedGroup]:
        """All groups of the batch; in the control experiment with shuffled rewards."""
        if not self.config.trainer.reward_shuffle:
            return list(groups)
        return shuffled(list(groups), np.random.default_rng([self.config.seed, step]))

    def _penalties(
        self, rows: Sequence[Row], trained_policy: TrainedPolicy
    ) -> tuple[list[FloatArray] | None, dict[str, float]]:
        """What a KL term takes from the reward of each token, float32 [T] per row, and its measure."""
        kl = trained_policy.settings.kl
        if kl is None or kl.use != "reward":
            return None, {}
        own = divergences(rows, trained_policy.reference_logprobs(rows))
        measure = {"reference_kl": mean_divergence(rows, own)}
        return [np.float32(kl.coefficient) * each for each in own], measure

    def _with_teacher(
        self,
        rows: Sequence[Row],
        advantages: list[FloatArray],
        trained_policy: TrainedPolicy,
        step: int,
    ) -> tuple[list[FloatArray], dict[str, float]]:
        """Advantages with what a teacher says of sampled tokens, and its measure."""
        distillation = trained_policy.settings.distillation
        if distillation is None:
            return advantages, {}
        if distillation.in_loss:
            return advantages if distillation.rewards else list(map(np.zeros_like, advantages)), {}
        own = divergences(rows, trained_policy.teacher_logprobs(rows))
        measure = {"teacher_kl": mean_divergence(rows, own)}
        if step < self.settings.critic.warmup:
            return advantages, measure
        kept = advantages if distillation.rewards else [np.zeros_like(each) for each in advantages]
        found = [with_teacher(*pair, distillation.coefficient) for pair in zip(kept, own, strict=True)]
        return found, measure

    def _advantages(
        self,
        groups: Sequence[LoadedGroup],
        values: Sequence[FloatArray],
        penalties: Sequence[FloatArray] | None,
    ) -> list[FloatArray]:
        """GAE advantages, float32 [T] per row of all groups."""
        left = iter(values)
        taken = iter(penalties or ())
        advantages = list[FloatArray]()
        for item in (item for group in groups for item in group.scored):
            own = [next(left) for _ in item.rows]
            penalty = None if penalties is None else [next(taken) for _ in item.rows]
            advantages += gae_of_rollout(
                item, own, self.settings.gamma, self.settings.lam, self.settings.channel, penalty
            )
        return advantages


def whitened(rows: Sequence[Row], advantages: Sequence[FloatArray]) -> list[FloatArray]:
    """Advantages, float32 [T] per row, with mean 0 and standard deviation 1 over all trained tokens; 0 for
    the other tokens.
    """
    whitened_N = iter(standardised(_trained(rows, advantages), _EPS))
    out = [np.zeros_like(advantage) for advantage in advantages]
    for row, advantage in zip(rows, out, strict=True):
        advantage[row.mask != 0] = list(islice(whitened_N, int(np.count_nonzero(row.mask))))
    return out


def explained_variance(
    rows: Sequence[Row], values: Sequence[FloatArray], targets: Sequence[FloatArray]
) -> float:
    """1 - Var(R - V) / Var(R) over trained tokens: 1 for a perfect critic, 0 for a constant one."""
    values_N, targets_N = _trained(rows, values), _trained(rows, targets)
    spread = float(targets_N.var()) if len(targets_N) else 0.0
    return 1 - float((targets_N - values_N).var()) / spread if spread else 0.0


def _trained(rows: Sequence[Row], per_row: Sequence[FloatArray]) -> Float64Array:
    """The values of the trained tokens, row after row, float64 [N]."""
    trained = [each[row.mask != 0].astype(np.float64) for row, each in zip(rows, per_row, strict=True)]
    return np.concatenate([*trained, np.zeros(0)])


def _batch(
    groups: Sequence[LoadedGroup],
    advantages: Sequence[FloatArray],
    version: int,
    chain: VersionChain,
    *,
    all_groups: bool,
) -> Batch:
    """The batch for the ledger and the metrics."""
    left = iter(advantages)
    return join(
        [
            group_part(
                group,
                [[next(left) for _ in own] for own in group.rows],
                version,
                chain,
                all_groups=all_groups,
            )
            for group in groups
        ]
    )
