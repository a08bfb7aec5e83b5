"""A trainee and its place in the run: what every algorithm's training has in common.

It resumes from the newest checkpoint, gathers batches, and makes of each step a checkpoint, a published
version, an entry in the ledger and a line of metrics. What is done with a batch is the algorithm's
(`trainers.grpo`, `trainers.ppo`). Checkpoint and publication of a step may lag behind the gathering and
computing of the next.
"""

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
from torch import Tensor

from harnessgym.config import Config
from harnessgym.errors import TrainerError
from harnessgym.run_config.run import RunConfig
from harnessgym.run_folder import RunFolder
from harnessgym.scheduling.staleness import VersionChain
from harnessgym.store import TraceStore, ledger, policies, runs
from harnessgym.store.ledger import StepRecord, TrainedGroup, commit_step
from harnessgym.store.policies import PolicyVersion
from harnessgym.tokens import IdArray
from harnessgym.traces.trajectories import Row
from trainers import checkpoint
from trainers.advantages.channels import channels_of, check_channels, due
from trainers.batch import Batch, LoadedGroup
from trainers.batch_collector import BatchCollector
from trainers.checkpoint import Checkpoint
from trainers.checkpoint_writer import CheckpointWriter
from trainers.corrections.loglinear import ages
from trainers.length_bias import LengthBias
from trainers.replaying import replayable
from trainers.shared_batch_collector import SharedGathering
from trainers.success_pool import SuccessPool
from trainers.trained_policy import TrainedPolicy
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


def in_processes(settings: TrainerSettings, take_part: Callable[[RunFolder, RunConfig, World], None]) -> None:
    """Train in as many processes as the run says; `take_part` is what each of them does."""
    folder = RunFolder(settings.run, settings.policy)
    config = folder.config().of_policy(settings.policy)
    if config.trainer.processes > 1:
        launch(config.trainer.processes, config.trainer.device, partial(take_part, folder, config))
    else:
        take_part(folder, config, World(device=config.trainer.device))


class Algorithm(Protocol):
    """What a batch is to an algorithm, and what it does to the policy."""

    def teaches(self, group: LoadedGroup, /) -> bool:
        """Whether a group teaches anything."""
        ...

    def teach(self, groups: Iterable[LoadedGroup], learner: "Learner", /) -> tuple[Batch, dict[str, float]]:
        """Change the trainee by the groups, as they come; what the ledger needs, and what was measured."""
        ...


class Learner:
    """A trainee and its place in the run. As a context manager it waits for its checkpoints before it is
    left.
    """

    def __init__(
        self,
        folder: RunFolder,
        config: RunConfig,
        store: TraceStore,
        trainee: TrainedPolicy,
        algorithm: Algorithm,
    ) -> None:
        run = store.read(runs.only)
        if run is None:
            raise TrainerError(f"{folder.root} has no run in its store; start it with `harnessgym train`.")
        self.folder = folder
        self.config = config
        self.store = store
        self.run = run
        self.policy_id = store.write(lambda conn: policies.register(conn, run.id, config.policy.name))
        self.trainee = trainee
        self.algorithm = algorithm
        self.publisher = Publisher(
            folder.versions, store, self.run.id, self.policy_id, config.trainer.publish
        )
        self.step = self.version = 0
        shared = SharedGathering(store, run.id, self.policy_id, config) if config.policies else None
        self.gathering = shared or BatchCollector(store, run.id, config, algorithm.teaches)
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
        """Load the newest checkpoint and make the store agree with it; without one, publish the starting
        weights.
        """
        found = checkpoint.load_newest(self.folder.checkpoints)
        newest = self.store.read(lambda conn: policies.latest(conn, self.policy_id))
        if found is not None:
            self.trainee.load(
                found.weights, found.optimizer, found.randoms, found.proximal, found.critic, found.adapters
            )
            if found.adapters is not None:
                found = replace(found, weights=self._merged(found.version))
            self.step = found.step
            self.version = found.version
            self._last = found.record
            self.store.write(lambda conn: ledger.abandon_after(conn, self.policy_id, found.version))
            self._publish(found)
            if found.metrics:
                self.log(found.metrics)  # the trainer may have died before it could
        elif newest is not None:
            _, weights = read_version(Path(newest.path))
            self.trainee.load(weights)
            self.step = newest.step
            self.version = newest.version
        else:
            self._commit(Checkpoint(0, 0, *self.trainee.state(), None, {}, *self._further_states()))

    def _merged(self, version: int) -> dict[str, Tensor]:
        """The weights that the adapters just loaded make: as published, or else merged again, which another
        machine rounds otherwise.
        """
        path = version_path(self.folder.versions, version)
        return read_version(path)[1] if path.exists() else self.trainee.state()[0]

    def arriving(self) -> Iterator[LoadedGroup]:
        """The groups of the next batch, as they come; see `trainers.batch_collector`."""
        busy = frozenset(self._last.group_ids if self._last else ())
        chain = self.chain()
        reuse = self.config.replay.reuse
        eta = self.config.trainer.max_staleness
        trained = (
            replayable(self.store, self.policy_id, self.version, chain, eta, self._newest) if reuse else []
        )
        told = (self.version, chain, busy, self.writer.check, trained)
        if isinstance(self.gathering, SharedGathering):
            return self.gathering.groups(*told)
        pool = SuccessPool(
            self.store, self.run.id, self.policy_id, again=self.config.replay.success_pool, max_staleness=eta,
            version=self.version, chain=chain, last=self._last, teaches=self.algorithm.teaches,
        )  # fmt: skip
        return self.gathering.groups(*told, pool.join)

    def train_step(self, groups: Iterable[LoadedGroup]) -> dict[str, float]:
        """One optimizer step on a batch, then checkpointed, published, entered in the ledger and logged:
        see `settle`.
        """
        began = time.perf_counter()
        batch, made = self.algorithm.teach(groups, self)
        if due(self.step + 1, self.config.trainer.steps):
            check_channels(channels_of(self.algorithm), self.store, self.run.id)
        given_up = self.gathering.given_up(self.version)
        held = time.perf_counter()
        weights, optimizer, randoms = self.trainee.state()
        optimizer = self.writer.stage(optimizer)
        further = self._further_states()
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
        if self.config.weighed:
            metrics["graded"] = float(np.mean(batch.graded))
        if (
            self.length_bias is not None
        ):  # which groups are trained is each policy's own affair, where there are several
            last = self._last.group_ids if self._last else ()
            metrics["length_bias"] = self.length_bias.measure({*batch.group_ids, *last})
        parent = self.version
        self.step += 1
        unused = self.store.read(lambda conn: policies.next_version(conn, self.policy_id))
        self.version = max(unused, newest_version(self.folder.versions) + 1)
        metrics["version"] = self.version
        self._last = self._record(batch, parent)
        self._newest = tuple(
            TrainedGroup(item.id, item.ordinal, self.version, item.staleness) for item in batch.groups
        )
        self.writer.submit(
            Checkpoint(self.step, self.version, weights, optimizer, randoms, self._last, metrics, *further)
        )
        return metrics

    def settle(self) -> None:
        """Wait until the last step's checkpoint is written and its version published. Raises what stopped
        that.
        """
        self.writer.settle()

    def _further_states(self) -> tuple[dict[str, Any] | None, dict[str, Any] | None, dict[str, Any] | None]:
        """Of the proximal policy, of the critic and of adapters."""
        return self.trainee.proximal_state(), self.trainee.critic_state(), self.trainee.adapter_state()

    def ages(self, rows: Sequence[Row], chain: VersionChain) -> list[IdArray] | None:
        """Staleness of each token of each row, where the update depends on it."""
        return [ages(row.versions, self.version, chain) for row in rows] if self.trainee.wants_ages else None

    def log(self, metrics: dict[str, float]) -> None:
        """Append a line to the run's metrics."""
        with self.folder.metrics_path.open("a") as file:
            file.write(json.dumps(metrics | {"time": time.time()}) + "\n")

    def chain(self) -> VersionChain:
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
            self.log(
                state.metrics | {"checkpoint_s": saved - began, "publish_s": time.perf_counter() - saved}
            )

    def _publish(self, state: Checkpoint) -> None:
        """Write a checkpoint's version and its record in the store, as far as that has not been done."""
        parent = state.record.version.parent_version if state.record else None
        found = self.publisher.publish(state.version, parent, state.weights, state.step)
        known: dict[str, Any] = {
            "path": str(found.path),
            "kind": found.kind,
            "checksum": found.checksum,
            "bytes": found.bytes,
        }
        if state.record is None:
            start = PolicyVersion(state.version, None, step=0, committed=True, orphaned=False, **known)
            self.store.write(lambda conn: policies.publish(conn, self.policy_id, start))
        else:
            record = replace(state.record, version=replace(state.record.version, **known))
            self.store.write(lambda conn: commit_step(conn, self.policy_id, record))
        self.publisher.collect()
