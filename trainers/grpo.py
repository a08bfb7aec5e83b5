"""Asynchronous GRPO (arXiv 2402.03300) in plain torch, top to bottom.

Take the next complete groups in order of submission, give each rollout its group-relative advantage, take one step on the
clipped surrogate with truncated importance weights, checkpoint, publish the weights as a new policy version. Rollouts go on
meanwhile under older versions; η bounds how much older.

Left out: a KL penalty to a reference policy, several steps per batch, gradient accumulation over processes.
"""

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from harnessgym.config import Config, validate
from harnessgym.errors import TrainerError
from harnessgym.registry import load
from harnessgym.run_config import RunConfig
from harnessgym.run_folder import RunFolder
from harnessgym.staleness import VersionChain
from harnessgym.store import TraceStore, ledger, policies, rollouts, runs
from harnessgym.store.ledger import StepRecord, commit_step
from harnessgym.store.policies import PolicyVersion
from trainers import checkpoint
from trainers.batch import Batch, Estimator, LoadedGroup, load_group, make_batch
from trainers.checkpoint import Checkpoint
from trainers.policy import Policy, load_policy, load_weights, published_weights
from trainers.update import UpdateSettings, make_optimizer, policy_update
from trainers.weights.publish import newest_version, read_version, version_path
from trainers.weights.publisher import Publisher

_POLL_S = 0.05


class TrainerSettings(Config):
    """What `harnessgym train-worker` takes."""

    run: Path
    """Folder of the run."""


def train(settings: TrainerSettings) -> None:
    """Train until the run has had all its steps, resuming where an earlier trainer of this run stopped."""
    folder = RunFolder(settings.run)
    config = folder.config()
    torch.set_num_threads(config.supervisor.threads)
    with TraceStore.open(folder.store_url(), synchronous=config.store.synchronous) as store:
        learner = Learner(folder, config, store)
        learner.resume()
        while learner.step < config.trainer.steps:
            waited = time.perf_counter()
            groups = learner.next_groups()
            started = time.perf_counter()
            metrics = learner.train_step(groups)
            learner.log(metrics | {"wait_s": started - waited, "step_s": time.perf_counter() - started})


class Learner:
    """Policy, optimizer and their place in the run."""

    def __init__(self, folder: RunFolder, config: RunConfig, store: TraceStore) -> None:
        run = store.read(runs.only)
        if run is None:
            raise TrainerError(f"{folder.root} has no run in its store; start it with `harnessgym train`.")
        self.folder, self.config, self.store, self.run = folder, config, store, run
        self.policy_id = store.write(lambda conn: policies.register(conn, run.id, config.policy.name))
        self.settings = validate(UpdateSettings, dict(config.trainer.update), "[trainer.update]")
        self.settings = self.settings.model_copy(update={"temperature": config.sampling.temperature})
        self.estimator: Estimator = load("advantage", config.trainer.advantage)
        torch.manual_seed(config.seed)
        self.policy: Policy = load_policy(Path(config.policy.path))
        self.optimizer = make_optimizer(self.policy, self.settings)
        self.publisher = Publisher(folder.versions, store, self.run.id, self.policy_id, config.trainer.publish)
        self.step = self.version = 0

    def resume(self) -> None:
        """Load the newest checkpoint and make the store agree with it; without one, publish the starting weights."""
        found = checkpoint.load_newest(self.folder.checkpoints)
        newest = self.store.read(lambda conn: policies.latest(conn, self.policy_id))
        if found is not None:
            load_weights(self.policy, found.weights)
            self.optimizer.load_state_dict(found.optimizer)
            torch.set_rng_state(found.random)
            self.step, self.version = found.step, found.version
            self.store.write(lambda conn: ledger.abandon_after(conn, self.policy_id, found.version))
            self._publish(found)
            if found.metrics:
                self.log(found.metrics)  # the trainer may have died before it could
        elif newest is not None:
            _, weights = read_version(Path(newest.path))
            load_weights(self.policy, weights)
            self.step, self.version = newest.step, newest.version
        else:
            optimizer = self.optimizer.state_dict()
            self._commit(Checkpoint(0, 0, published_weights(self.policy), optimizer, torch.get_rng_state(), None, {}))

    def next_groups(self) -> list[LoadedGroup]:
        """Wait for the next batch: complete groups without a gap, none of them too stale."""
        loaded: dict[str, LoadedGroup] = {}
        wanted, chain = self.config.trainer.groups_per_step, self._chain()
        with self.store.watch(_POLL_S) as watch:
            while True:
                ready = self.store.read(lambda conn: rollouts.complete_groups(conn, self.run.id, "train", wanted))
                for group in ready:
                    if group.id not in loaded:
                        loaded[group.id] = load_group(self.store, group)
                allowed = self.config.trainer.max_staleness
                stale = [item for item in loaded.values() if item.staleness(self.version, chain) > allowed]
                for item in stale:
                    self._drop(loaded.pop(item.group.id))
                if len(ready) == wanted and not stale:
                    return [loaded[group.id] for group in ready]
                watch.wait()

    def train_step(self, groups: list[LoadedGroup]) -> dict[str, float]:
        """One optimizer step on a batch, checkpointed, published and entered in the ledger."""
        options = self.config.trainer
        shuffle = np.random.default_rng([self.config.seed, self.step]) if options.reward_shuffle else None
        batch = make_batch(groups, self.version, self._chain(), self.estimator, shuffle)
        update = self._update(batch)
        metrics = update | {
            "step": self.step + 1,
            "reward": float(np.mean(batch.rewards)),
            "signal": batch.signal,
            "staleness": batch.staleness,
        }
        parent = self.version
        self.step += 1
        unused = self.store.read(lambda conn: policies.next_version(conn, self.policy_id))
        self.version = max(unused, newest_version(self.folder.versions) + 1)
        metrics["version"] = self.version
        self._commit(self._checkpoint(batch, parent, metrics))
        return metrics

    def _update(self, batch: Batch) -> dict[str, float]:
        """Step on the batch; one without any signal changes nothing, and still makes a version."""
        if not batch.rows:
            return {}
        update = policy_update(self.policy, self.optimizer, batch.rows, batch.advantages, self.settings)
        return {name: float(getattr(update, name)) for name in update.__dataclass_fields__}

    def log(self, metrics: dict[str, float]) -> None:
        """Append a line to the run's metrics."""
        with self.folder.metrics_path.open("a") as file:
            file.write(json.dumps(metrics | {"time": time.time()}) + "\n")

    def _chain(self) -> VersionChain:
        return VersionChain(self.store.read(lambda conn: policies.versions(conn, self.policy_id)))

    def _checkpoint(self, batch: Batch, parent: int, metrics: dict[str, float]) -> Checkpoint:
        version = PolicyVersion(
            version=self.version,
            parent_version=parent,
            kind="full",
            path=str(version_path(self.folder.versions, self.version)),
            step=self.step,
            checksum="",
            bytes=0,
            committed=True,
            orphaned=False,
        )
        record = StepRecord(version, batch.group_ids, batch.trained, batch.excluded)
        state = self.optimizer.state_dict()
        weights = published_weights(self.policy)
        return Checkpoint(self.step, self.version, weights, state, torch.get_rng_state(), record, metrics)

    def _commit(self, state: Checkpoint) -> None:
        checkpoint.save(self.folder.checkpoints, state)
        self._publish(state)

    def _publish(self, state: Checkpoint) -> None:
        """Write a checkpoint's version and its record in the store, as far as that has not been done."""
        parent = state.record.version.parent_version if state.record else None
        found = self.publisher.publish(state.version, parent, state.weights, state.step)
        known: dict[str, Any] = {"path": str(found.path), "kind": found.kind, "checksum": found.checksum, "bytes": found.bytes}
        if state.record is None:
            start = PolicyVersion(state.version, None, step=0, committed=True, orphaned=False, **known)
            self.store.write(lambda conn: policies.publish(conn, self.policy_id, start))
        else:
            record = replace(state.record, version=replace(state.record.version, **known))
            self.store.write(lambda conn: commit_step(conn, self.policy_id, record))
        self.publisher.collect()

    def _drop(self, group: LoadedGroup) -> None:
        """Give up a group that is too stale; the node submits another."""

        def work(conn: Any) -> None:
            rollouts.set_group_state(conn, group.group.id, "dropped")
            for member in group.group.members:
                rollouts.exclude(conn, member.rollout_id, "too_stale")

        self.store.write(work)
