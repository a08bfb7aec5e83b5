"""The training loop of one policy in a run, shared by all algorithms.

The `Learner` resumes from the newest checkpoint, collects batches, and turns each step into a checkpoint, a
published version, a ledger entry and a line of metrics. The algorithm (`trainers.grpo`, `trainers.ppo`)
trains on the batch. Checkpoint and publication of a step may overlap with the next step.
"""

import json
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
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
from harnessgym.run_identity import run_of
from harnessgym.scheduling.staleness import VersionChain
from harnessgym.store import TraceStore, ledger, policies
from harnessgym.store.durations import GroupLength, lengths
from harnessgym.store.ledger import StepRecord, TrainedGroup, commit_step
from harnessgym.store.policies import PolicyVersion
from harnessgym.tokens import IdArray
from harnessgym.traces.trajectories import Row
from trainers import checkpoint
from trainers.advantages.channels import channels_of, check_channels, due
from trainers.batch import Batch, LoadedGroup
from trainers.batch_collector import BatchCollector, SharedBatchCollector
from trainers.checkpoint import Checkpoint, CheckpointWriter
from trainers.corrections.loglinear import ages
from trainers.replay import SuccessPool, replayable
from trainers.trained_policy import TrainedPolicy
from trainers.weights.agent import read_verified
from trainers.weights.chain import read_version
from trainers.weights.manifest import newest_version, version_path
from trainers.weights.publish import Publisher
from trainers.world import World, launch

_SETTLED = ("consumed", "dropped")
_State = dict[str, Any] | None


class LengthBias:
    """Mean sampled tokens of a run's trained rollouts, over the mean of all that have ended, given up or not.

    A trainer that takes the first complete groups takes short ones. Rollouts that still run count in neither
    mean and tend to be long, so the bias of a step is fully visible only a few steps later. Groups that can
    no longer change are summed once.
    """

    def __init__(self, store: TraceStore, run_id: str) -> None:
        self.store = store
        self.run_id = run_id
        self._first = 0
        """Groups before this ordinal are in the sums."""
        self._ended, self._trained = Counter[str](), Counter[str]()

    def measure(self, group_ids: Collection[str] = ()) -> float:
        """The ratio if the groups `group_ids` are trained too; 1 before anything is trained."""
        groups = self.store.read(lambda conn: lengths(conn, self.run_id, self._first))
        while groups and groups[0].state in _SETTLED:
            self._first = groups[0].ordinal + 1
            _add(self._ended, self._trained, groups.pop(0), group_ids)
        ended = self._ended.copy()
        trained = self._trained.copy()
        for item in groups:
            _add(ended, trained, item, group_ids)
        if not trained["tokens"] or not ended["tokens"]:
            return 1.0
        return (trained["tokens"] / trained["rollouts"]) / (ended["tokens"] / ended["rollouts"])


def _add(ended: Counter[str], trained: Counter[str], group: GroupLength, group_ids: Collection[str]) -> None:
    values = {"rollouts": group.rollouts, "tokens": group.tokens}
    ended.update(values)
    if group.state == "consumed" or group.id in group_ids:
        trained.update(values)


class TrainerSettings(Config):
    """Settings of `harnessgym train-worker`."""

    run: Path
    """Folder of the run."""
    policy: str = ""
    """The policy that is trained; the run's first if not given."""


def in_processes(settings: TrainerSettings, take_part: Callable[[RunFolder, RunConfig, World], None]) -> None:
    """Run `take_part` in as many processes as the run's settings say."""
    folder = RunFolder(settings.run, settings.policy)
    config = folder.config().of_policy(settings.policy)
    if config.trainer.processes > 1:
        launch(config.trainer.processes, config.trainer.device, partial(take_part, folder, config))
    else:
        take_part(folder, config, World(device=config.trainer.device))


class Algorithm(Protocol):
    """How an algorithm decides whether a group has a signal, and how it trains on a batch."""

    def has_signal(self, group: LoadedGroup, /) -> bool:
        """Whether training on the group changes anything."""
        ...

    def train_on(
        self, groups: Iterable[LoadedGroup], learner: "Learner", /
    ) -> tuple[Batch, dict[str, float]]:
        """Train on the groups as they come; returns the batch for the ledger, and metrics."""
        ...


class Learner:
    """The policy under training and its state in the run. As a context manager it waits for the last
    checkpoint on exit.
    """

    def __init__(
        self,
        folder: RunFolder,
        config: RunConfig,
        store: TraceStore,
        trained_policy: TrainedPolicy,
        algorithm: Algorithm,
    ) -> None:
        run = store.read(lambda conn: run_of(conn, folder))
        if run is None:
            raise TrainerError(f"{folder.root} has no run in its store; start it with `harnessgym train`.")
        self.folder = folder
        self.config = config
        self.store = store
        self.run = run
        self.policy_id = store.write(lambda conn: policies.register(conn, run.id, config.policy.name))
        self.trained_policy = trained_policy
        self.algorithm = algorithm
        self.publisher = Publisher(
            folder.versions, store, self.run.id, self.policy_id, config.trainer.publish
        )
        self.step = self.version = 0
        shared = SharedBatchCollector(store, run.id, self.policy_id, config) if config.policies else None
        self.collector = shared or BatchCollector(store, run.id, config, algorithm.has_signal)
        # With several policies each trainer decides for itself what it trains, so a ratio over the run's
        # groups would mean nothing.
        self.length_bias = None if config.policies else LengthBias(store, run.id)
        self.writer = CheckpointWriter(self._commit, lazy=config.trainer.checkpoints == "lazy")
        self._last: StepRecord | None = None
        """Record of the newest step; the store may not have it yet."""
        self._newest: tuple[TrainedGroup, ...] = ()
        """Groups of the newest step, if this process took it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.writer.close()

    def resume(self) -> None:
        """Load the newest checkpoint and bring the store up to date with it; without a checkpoint, continue
        from the newest version or publish the starting weights.
        """
        state = checkpoint.load_newest(self.folder.checkpoints)
        if state is not None and state.run not in ("", self.run.id):
            raise TrainerError(
                f"The checkpoint of step {state.step} in {self.folder.checkpoints} is of run {state.run}, "
                f"and this is run {self.run.id}. Put the run's own checkpoint back, or remove that folder to "
                "resume from the newest published weights with a fresh optimizer."
            )
        newest = self.store.read(lambda conn: policies.latest(conn, self.policy_id))
        if state is not None:
            self.trained_policy.load(
                state.weights,
                state.optimizer,
                state.randoms,
                state.proximal,
                state.critic,
                state.adapters,
                state.references,
            )
            if state.adapters is not None:
                state = replace(state, weights=self._merged(state.version))
            self.step = state.step
            self.version = state.version
            self._last = state.record
            # The trainer may have died anywhere between checkpoint and metrics. Versions after the
            # checkpoint cannot be reproduced and are abandoned; publishing again does only what is missing.
            self.store.write(lambda conn: ledger.abandon_after(conn, self.policy_id, state.version))
            self._publish(state)
            if state.metrics:
                self.log(state.metrics)
        elif newest is not None:
            _, weights = read_verified(newest)
            self.trained_policy.load(weights)
            self.step = newest.step
            self.version = newest.version
        else:
            self._commit(Checkpoint(0, 0, *self.trained_policy.state(), None, {}, *self._further_states()))

    def _merged(self, version: int) -> dict[str, Tensor]:
        """The full weights of the loaded adapters: as published, or else merged again, which may round
        differently on another machine.
        """
        path = version_path(self.folder.versions, version)
        return read_version(path)[1] if path.exists() else self.trained_policy.state()[0]

    def arriving(self) -> Iterator[LoadedGroup]:
        """The groups of the next batch as they come; see `trainers.batch_collector`."""
        busy = frozenset(self._last.group_ids if self._last else ())
        chain = self.chain()
        reuse = self.config.replay.reuse
        eta = self.config.trainer.max_staleness
        trained = (
            replayable(self.store, self.policy_id, self.version, chain, eta, self._newest) if reuse else []
        )
        arguments = (self.version, chain, busy, self.writer.check, trained)
        if isinstance(self.collector, SharedBatchCollector):
            return self.collector.groups(*arguments)
        pool = SuccessPool(
            self.store, self.run.id, self.policy_id, again=self.config.replay.success_pool, max_staleness=eta,
            version=self.version, chain=chain, last=self._last, has_signal=self.algorithm.has_signal,
        )  # fmt: skip
        return self.collector.groups(*arguments, pool.join)

    def train_step(self, groups: Iterable[LoadedGroup]) -> dict[str, float]:
        """Take one optimizer step on a batch, then checkpoint, publish, record and log it; returns the
        metrics. If lazy, `settle` waits for all but the step.
        """
        began = time.perf_counter()
        batch, measured = self.algorithm.train_on(groups, self)
        self.trained_policy.end_batch()
        if due(self.step + 1, self.config.trainer.steps):
            check_channels(channels_of(self.algorithm), self.store, self.run.id)
        given_up = self.collector.given_up(self.version)
        held = time.perf_counter()
        weights, optimizer, randoms = self.trained_policy.state()
        optimizer = self.writer.stage(optimizer)
        further = self._further_states()
        metrics = measured | {
            "step": self.step + 1,
            "reward": float(np.mean(batch.rewards)),
            "signal": batch.signal,
            "staleness": batch.staleness,
            "reduced": batch.reduced,
            "off_policy": batch.off_policy,
            "carried": batch.carried,
            "replayed": self.collector.replayed,
            "borrowed": batch.borrowed,
            "early": self.collector.early,
            "dropped": given_up.get("too_stale", 0),
            "requeued": given_up.get("requeued", 0),
            "no_signal": given_up.get("no_signal", 0),
            "wait_s": self.collector.waited_s,
            "step_s": held - began - self.collector.waited_s,
            "held_s": time.perf_counter() - held,
        }
        if self.config.weighed:
            metrics["graded"] = float(np.mean(batch.graded))
        if self.length_bias is not None:
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
        """Wait until the last step's checkpoint is written and its version published. Raises its error."""
        self.writer.settle()

    def _further_states(self) -> tuple[_State, _State, _State, _State]:
        """States of the proximal policy, the critic, the adapters and the references."""
        return (
            self.trained_policy.proximal_state(),
            self.trained_policy.critic_state(),
            self.trained_policy.adapter_state(),
            self.trained_policy.reference_state(),
        )

    def ages(self, rows: Sequence[Row], chain: VersionChain) -> list[IdArray] | None:
        """Staleness of each token of each row, if the update depends on it."""
        return (
            [ages(row.versions, self.version, chain) for row in rows]
            if self.trained_policy.wants_ages
            else None
        )

    def log(self, metrics: dict[str, float]) -> None:
        """Append a line to the run's metrics."""
        with self.folder.metrics_path.open("a") as file:
            file.write(json.dumps(metrics | {"time": time.time()}) + "\n")

    def chain(self) -> VersionChain:
        """All versions, including the newest step's, which may not be published yet."""
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
        """Save the checkpoint, then publish; if lazy, while the next step is computed."""
        # The order matters: engines sample from a version as soon as it is published, and these samples can
        # only be trained on if a resumed trainer has that version.
        began = time.perf_counter()
        checkpoint.save(self.folder.checkpoints, replace(state, run=self.run.id))
        saved = time.perf_counter()
        self._publish(state)
        if state.metrics:
            self.log(
                state.metrics | {"checkpoint_s": saved - began, "publish_s": time.perf_counter() - saved}
            )

    def _publish(self, state: Checkpoint) -> None:
        """Write a checkpoint's version and its record in the store, if this has not been done."""
        # Files first, then the transaction that makes the version known: an engine that reads of a version
        # in the store finds it whole on disk.
        parent = state.record.version.parent_version if state.record else None
        published = self.publisher.publish(state.version, parent, state.weights, state.step)
        # The checkpoint and the version's folder may both be another run's, and agree with each other.
        recorded = self.store.read(lambda conn: policies.get(conn, self.policy_id, state.version))
        if recorded is not None and recorded.checksum != published.checksum:
            raise TrainerError(
                f"The checkpoint of step {state.step} has weights with checksum {published.checksum} for "
                f"version {state.version}; this run published {recorded.checksum}. Put the run's own "
                f"checkpoint and {published.path} back, or start a new run in another folder."
            )
        known: dict[str, Any] = {
            "path": str(published.path),
            "kind": published.kind,
            "checksum": published.checksum,
            "bytes": published.bytes,
        }
        if state.record is None:
            start = PolicyVersion(state.version, None, step=0, committed=True, orphaned=False, **known)
            self.store.write(lambda conn: policies.publish(conn, self.policy_id, start))
        else:
            record = replace(state.record, version=replace(state.record.version, **known))
            self.store.write(lambda conn: commit_step(conn, self.policy_id, record))
        self.publisher.collect()
