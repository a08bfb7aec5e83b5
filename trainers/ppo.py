"""Asynchronous PPO (arXiv 1707.06347) with a critic, in plain torch, top to bottom.

Take the next complete groups, let the critic value every token, find advantages by GAE, step the policy on
the loss and with the corrections that the run names, and the critic towards the returns; the step becomes a
checkpoint, and the policy's weights a new version (`trainers.learner`). The old policy of the ratio is the
one that sampled: its log-probabilities are recorded, and computed again only with proximal = "recompute", for
AReaL's decoupled PPO. A group is no more than several rollouts of a task: none is left out, and one rollout
is enough.

The policy and its critic may lie in shards over several processes (`trainers.trained_policy`); this is what
their leader does. The critic is in the checkpoint and is never published.

Left out: a KL penalty to a reference policy, a trunk that both share (`trainers.critic` says why).
"""

from collections.abc import Iterable, Iterator, Sequence
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
from trainers.advantages.steps import standardised
from trainers.batch import Batch, LoadedGroup, join, share_of
from trainers.learner import Learner, TrainerSettings, in_processes
from trainers.ppo_settings import PpoSettings, ppo_settings_of
from trainers.reward_shuffle import shuffled
from trainers.trained_policy import TrainedPolicy
from trainers.world import World

_EPS = 1e-8


def train(settings: TrainerSettings) -> None:
    """Train until the run has had all its steps, resuming where an earlier trainer of this run stopped."""
    in_processes(settings, take_part)


def take_part(folder: RunFolder, config: RunConfig, world: World) -> None:
    """What each process of the trainer does: the leader trains, the others follow."""
    torch.set_num_threads(config.supervisor.threads)
    settings = ppo_settings_of(config)
    trainee = TrainedPolicy(config, world, folder.versions, settings.critic)
    if world.rank > 0:
        trainee.follow()
        return
    with (
        TraceStore.open(folder.store_url(), synchronous=config.store.synchronous) as store,
        Learner(folder, config, store, trainee, PpoTrainer(config, settings)) as learner,
    ):
        learner.resume()
        while learner.step < config.trainer.steps:
            learner.train_step(learner.arriving())
        learner.settle()
    trainee.dismiss()


class PpoTrainer:
    """Optimizer steps of a policy and its critic on a batch, with advantages over what the critic
    expected.
    """

    def __init__(self, config: RunConfig, settings: PpoSettings) -> None:
        self.config = config
        self.settings = settings
        self.channels = of_calls("trainer.ppo.channel", settings.channel)

    def teaches(self, group: LoadedGroup) -> bool:
        """Whether anything in it is trained. Where all rewards are equal, the critic learns to expect
        them.
        """
        return any(row.mask.any() for rows in group.rows for row in rows)

    def teach(self, groups: Iterable[LoadedGroup], learner: Learner) -> tuple[Batch, dict[str, float]]:
        """Train both on a batch. While the critic warms up the policy is left alone: its advantages are
        zero.
        """
        taken = self._taken(groups, learner.step)
        trainee = learner.trainee
        chain = learner.chain()
        rows = [row for group in taken for own in group.rows for row in own]
        values = trainee.values(rows)
        advantages = self._advantages(taken, values)
        targets = [advantage + value for advantage, value in zip(advantages, values, strict=True)]
        explained = explained_variance(rows, values, targets)
        if learner.step < self.settings.critic.warmup:
            advantages = [np.zeros_like(advantage) for advantage in advantages]
        elif self.settings.whiten:
            advantages = whitened(rows, advantages)
        batch = _batch(taken, advantages, learner.version, chain)
        ages = learner.ages(rows, chain)
        recompute = bool(batch.rows) and trainee.settings.proximal == "recompute"
        proximal = trainee.recomputed(rows) if recompute else None
        policy_steps = list[dict[str, float]]()
        critic_steps = list[dict[str, float]]()
        for part in self._parts(rows, learner.step):
            mine = [rows[at] for at in part]
            if batch.rows:  # else no token has an advantage
                own_ages = None if ages is None else [ages[at] for at in part]
                own_proximal = None if proximal is None else [proximal[at] for at in part]
                taught = trainee.update(mine, [advantages[at] for at in part], own_ages, own_proximal)
                policy_steps.append(taught.as_dict())
            old = [values[at] for at in part]
            critic_steps.append(trainee.update_critic(mine, [targets[at] for at in part], old).as_dict())
        return batch, _means(policy_steps) | _means(critic_steps) | {"explained_variance": explained}

    def _taken(self, groups: Iterable[LoadedGroup], step: int) -> list[LoadedGroup]:
        """All groups of the batch; in the control experiment with each other's rewards."""
        if not self.config.trainer.reward_shuffle:
            return list(groups)
        return shuffled(list(groups), np.random.default_rng([self.config.seed, step]))

    def _advantages(self, groups: Sequence[LoadedGroup], values: Sequence[FloatArray]) -> list[FloatArray]:
        """By GAE, float32 [T] per row of all groups."""
        left = iter(values)
        found = list[FloatArray]()
        for item in (item for group in groups for item in group.scored):
            own = [next(left) for _ in item.rows]
            found += gae_of_rollout(item, own, self.settings.gamma, self.settings.lam, self.settings.channel)
        return found

    def _parts(self, rows: Sequence[Row], step: int) -> Iterator[list[int]]:
        """Indices of rows for each update: in every epoch all rollouts in an order of its own, cut into
        mini-batches.
        """
        of_rollout: dict[str, list[int]] = {}
        for at, row in enumerate(rows):
            of_rollout.setdefault(row.rollout_id, []).append(at)
        rollouts = [own for own in of_rollout.values() if any(rows[at].mask.any() for at in own)]
        for epoch in range(self.settings.epochs):
            order = np.random.default_rng([self.config.seed, step, epoch]).permutation(len(rollouts))
            for part in np.array_split(order, self.settings.mini_batches):
                if len(part):
                    yield sorted(at for number in part for at in rollouts[number])


def whitened(rows: Sequence[Row], advantages: Sequence[FloatArray]) -> list[FloatArray]:
    """Advantages, float32 [T] per row, with mean 0 and standard deviation 1 over all trained tokens; 0 for
    the others.
    """
    found_N = iter(standardised(_trained(rows, advantages), _EPS))
    out = [np.zeros_like(advantage) for advantage in advantages]
    for row, advantage in zip(rows, out, strict=True):
        advantage[row.mask != 0] = list(islice(found_N, int(np.count_nonzero(row.mask))))
    return out


def explained_variance(
    rows: Sequence[Row], values: Sequence[FloatArray], targets: Sequence[FloatArray]
) -> float:
    """1 - Var(R - V) / Var(R) over trained tokens: 1 where the critic is right, 0 where it tells no token
    from another.
    """
    values_N, targets_N = _trained(rows, values), _trained(rows, targets)
    spread = float(targets_N.var()) if len(targets_N) else 0.0
    return 1 - float((targets_N - values_N).var()) / spread if spread else 0.0


def _trained(rows: Sequence[Row], per_row: Sequence[FloatArray]) -> Float64Array:
    """What trained tokens have, row after row, float64 [N]."""
    found = [each[row.mask != 0].astype(np.float64) for row, each in zip(rows, per_row, strict=True)]
    return np.concatenate([*found, np.zeros(0)])


def _batch(
    groups: Sequence[LoadedGroup], advantages: Sequence[FloatArray], version: int, chain: VersionChain
) -> Batch:
    """What the ledger and the metrics say of the batch."""
    left = iter(advantages)
    return join(
        [
            share_of(group, [[next(left) for _ in own] for own in group.rows], version, chain)
            for group in groups
        ]
    )


def _means(steps: Sequence[dict[str, float]]) -> dict[str, float]:
    """Of each measure over the updates on a batch."""
    return {name: float(np.mean([step[name] for step in steps])) for name in (steps[0] if steps else ())}
