"""Asynchronous GRPO (arXiv 2402.03300) in plain torch, top to bottom.

Take the next complete groups, give each rollout its advantages within its group, take one step on the loss and with the
corrections that the run names, checkpoint, publish the weights as a new policy version. Rollouts go on meanwhile under older
versions; η bounds how much older. Checkpoint and publication of a step may lag behind the gathering and computing of the next.

The policy may lie in shards over several processes (`trainers.trainee`); this is what their leader does.

Left out: a KL penalty to a reference policy, several steps per batch.
"""

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

from harnessgym.config import Config
from harnessgym.errors import TrainerError
from harnessgym.run_config import RunConfig
from harnessgym.run_folder import RunFolder
from harnessgym.staleness import VersionChain
from harnessgym.store import TraceStore, ledger, policies, runs
from harnessgym.store.ledger import StepRecord, TrainedGroup, commit_step
from harnessgym.store.policies import PolicyVersion
from harnessgym.tokens import IdArray
from harnessgym.traces.trajectories import Row
from trainers import checkpoint
from trainers.advantages.estimator import make_estimator
from trainers.batch import Batch, LoadedGroup, gives_signal, join, make_batch, share_of
from trainers.checkpoint import Checkpoint
from trainers.checkpoint_writer import CheckpointWriter
from trainers.corrections.loglinear import ages
from trainers.gathering import Gathering
from trainers.length_bias import LengthBias
from trainers.replaying import replayable
from trainers.shared_gathering import SharedGathering
from trainers.success_pool import SuccessPool
from trainers.trainee import Trainee
from trainers.update import UpdateMetrics
from trainers.weights.chain import read_version
from trainers.weights.manifest import newest_version, version_path
from trainers.weights.publisher import Publisher
from trainers.world import World, launch


class TrainerSettings(Config):
    """What `harnessgym train-worker` takes."""

    run: Path
    """Folder of the run."""
    policy: str = ""
    """The policy that is trained; the run's first if not given."""


def train(settings: TrainerSettings) -> None:
    """Train until the run has had all its steps, resuming where an earlier trainer of this run stopped."""
    folder = RunFolder(settings.run, settings.policy)
    config = folder.config().of_policy(settings.policy)
    if config.trainer.processes > 1:
        launch(config.trainer.processes, config.trainer.device, partial(take_part, folder, config))
    else:
        take_part(folder, config, World(device=config.trainer.device))


def take_part(folder: RunFolder, config: RunConfig, world: World) -> None:
    """What each process of the trainer does: the leader trains, the others follow."""
    torch.set_num_threads(config.supervisor.threads)
    trainee = Trainee(config, world, folder.versions)
    if world.rank > 0:
        trainee.follow()
        return
    with (
        TraceStore.open(folder.store_url(), synchronous=config.store.synchronous) as store,
        Learner(folder, config, store, trainee) as learner,
    ):
        learner.resume()
        while learner.step < config.trainer.steps:
            learner.train_step(learner.arriving())
        learner.settle()
    trainee.dismiss()


class Learner:
    """A trainee and its place in the run. As a context manager it waits for its checkpoints before it is left."""

    def __init__(self, folder: RunFolder, config: RunConfig, store: TraceStore, trainee: Trainee) -> None:
        run = store.read(runs.only)
        if run is None:
            raise TrainerError(f"{folder.root} has no run in its store; start it with `harnessgym train`.")
        self.folder, self.config, self.store, self.run = folder, config, store, run
        self.policy_id = store.write(lambda conn: policies.register(conn, run.id, config.policy.name))
        self.estimator = make_estimator(config, store, trainee)
        self.trainee = trainee
        self.publisher = Publisher(folder.versions, store, self.run.id, self.policy_id, config.trainer.publish)
        self.step = self.version = 0
        teaches = partial(gives_signal, self.estimator)
        shared = SharedGathering(store, run.id, self.policy_id, config) if config.policies else None
        self.gathering = shared or Gathering(store, run.id, config, teaches)
        self.length_bias = None if config.policies else LengthBias(store, run.id)
        self.writer = CheckpointWriter(self._commit, lazy=config.trainer.checkpoints == "lazy")
        self._last: StepRecord | None = None
        """Of the newest step; the store may not have it yet."""
        self._newest: tuple[TrainedGroup, ...] = ()
        """Its groups, if it was taken here."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.writer.close()

    def resume(self) -> None:
        """Load the newest checkpoint and make the store agree with it; without one, publish the starting weights."""
        found = checkpoint.load_newest(self.folder.checkpoints)
        newest = self.store.read(lambda conn: policies.latest(conn, self.policy_id))
        if found is not None:
            self.trainee.load(found.weights, found.optimizer, found.randoms, found.proximal)
            self.step, self.version, self._last = found.step, found.version, found.record
            self.store.write(lambda conn: ledger.abandon_after(conn, self.policy_id, found.version))
            self._publish(found)
            if found.metrics:
                self.log(found.metrics)  # the trainer may have died before it could
        elif newest is not None:
            _, weights = read_version(Path(newest.path))
            self.trainee.load(weights)
            self.step, self.version = newest.step, newest.version
        else:
            self._commit(Checkpoint(0, 0, *self.trainee.state(), None, {}, self.trainee.proximal_state()))

    def arriving(self) -> Iterator[LoadedGroup]:
        """The groups of the next batch, as they come; see `trainers.gathering`."""
        busy = frozenset(self._last.group_ids if self._last else ())
        chain, reuse, eta = self._chain(), self.config.replay.reuse, self.config.trainer.max_staleness
        trained = replayable(self.store, self.policy_id, self.version, chain, eta, self._newest) if reuse else []
        told = (self.version, chain, busy, self.writer.check, trained)
        if isinstance(self.gathering, SharedGathering):
            return self.gathering.groups(*told)
        pool = SuccessPool(
            self.store, self.run.id, self.policy_id, again=self.config.replay.success_pool, max_staleness=eta,
            version=self.version, chain=chain, last=self._last, teaches=self.gathering.teaches,
        )  # fmt: skip
        return self.gathering.groups(*told, pool.join)

    def train_step(self, groups: Iterable[LoadedGroup]) -> dict[str, float]:
        """One optimizer step on a batch, then checkpointed, published, entered in the ledger and logged: see `settle`."""
        began = time.perf_counter()
        batch, update = self._streamed(groups) if self.config.trainer.stream else self._at_once(groups)
        made = {} if update is None else {name: float(getattr(update, name)) for name in update.__dataclass_fields__}
        given_up = self.gathering.given_up(self.version)
        held = time.perf_counter()
        weights, optimizer, randoms = self.trainee.state()
        optimizer, proximal = self.writer.stage(optimizer), self.trainee.proximal_state()
        metrics = made | {
            "step": self.step + 1,
            "reward": float(np.mean(batch.rewards)),
            "signal": batch.signal,
            "staleness": batch.staleness,
            "reduced": batch.reduced,
            "off_policy": batch.off_policy,
            "carried": batch.carried,
            "replayed": self.gathering.replayed,
            "borrowed": batch.borrowed,
            "early": self.gathering.early,
            "dropped": given_up.get("too_stale", 0),
            "requeued": given_up.get("requeued", 0),
            "no_signal": given_up.get("no_signal", 0),
            "wait_s": self.gathering.waited_s,
            "step_s": held - began - self.gathering.waited_s,
            "held_s": time.perf_counter() - held,
        }
        if self.length_bias is not None:  # which groups are trained is each policy's own affair, where there are several
            last = self._last.group_ids if self._last else ()
            metrics["length_bias"] = self.length_bias.measure({*batch.group_ids, *last})
        parent = self.version
        self.step += 1
        unused = self.store.read(lambda conn: policies.next_version(conn, self.policy_id))
        self.version = max(unused, newest_version(self.folder.versions) + 1)
        metrics["version"] = self.version
        self._last = self._record(batch, parent)
        self._newest = tuple(TrainedGroup(item.id, item.ordinal, self.version, item.staleness) for item in batch.groups)
        self.writer.submit(Checkpoint(self.step, self.version, weights, optimizer, randoms, self._last, metrics, proximal))
        return metrics

    def settle(self) -> None:
        """Wait until the last step's checkpoint is written and its version published. Raises what stopped that."""
        self.writer.settle()

    def _at_once(self, groups: Iterable[LoadedGroup]) -> tuple[Batch, UpdateMetrics | None]:
        """Step on the whole batch; one without any signal changes nothing, and still makes a version."""
        shuffled = self.config.trainer.reward_shuffle
        shuffle = np.random.default_rng([self.config.seed, self.step]) if shuffled else None
        kept = self.config.filter.steps_kept
        batch = make_batch(list(groups), self.version, self._chain(), self.estimator, shuffle, kept)
        if not batch.rows:
            return batch, None
        return batch, self.trainee.update(batch.rows, batch.advantages, self._ages(batch.rows, self._chain()))

    def _streamed(self, groups: Iterable[LoadedGroup]) -> tuple[Batch, UpdateMetrics | None]:
        """The same, group by group as they arrive."""
        chain, shares, kept = self._chain(), [], self.config.filter.steps_kept
        self.trainee.begin()
        for group in groups:
            shares.append(share_of(group, self.estimator(group.scored), self.version, chain, kept))
            if shares[-1].rows:
                self.trainee.add(shares[-1].rows, shares[-1].advantages, self._ages(shares[-1].rows, chain))
        batch = join(shares)
        return batch, self.trainee.step() if batch.rows else None

    def _ages(self, rows: Sequence[Row], chain: VersionChain) -> list[IdArray] | None:
        """Staleness of each token of each row, where the update depends on it."""
        return [ages(row.versions, self.version, chain) for row in rows] if self.trainee.wants_ages else None

    def log(self, metrics: dict[str, float]) -> None:
        """Append a line to the run's metrics."""
        with self.folder.metrics_path.open("a") as file:
            file.write(json.dumps(metrics | {"time": time.time()}) + "\n")

    def _chain(self) -> VersionChain:
        """All versions, with the newest step's, which may not be published yet."""
        known = self.store.read(lambda conn: policies.versions(conn, self.policy_id))
        if self._last is not None and self.version not in {item.version for item in known}:
            known.append(self._last.version)
        return VersionChain(known)

    def _record(self, batch: Batch, parent: int) -> StepRecord:
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
        return StepRecord(version, batch.group_ids, batch.trained, batch.excluded)

    def _commit(self, state: Checkpoint) -> None:
        """Checkpoint, then publish; lazily this runs beside the next step."""
        began = time.perf_counter()
        checkpoint.save(self.folder.checkpoints, state)
        saved = time.perf_counter()
        self._publish(state)
        if state.metrics:
            self.log(state.metrics | {"checkpoint_s": saved - began, "publish_s": time.perf_counter() - saved})

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
