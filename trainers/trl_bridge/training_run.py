"""A run's interface for an external trainer: groups come in batches, and each trained batch makes a version.

It replaces `trainers.learner.Learner` and is named as `trainer.algorithm`; it runs in the process that the
run's supervisor keeps. Proxy, engines and node continue in the meantime, and the engines install each version
by delta, one after the other.

Only the published weights can be reproduced. A restarted trainer continues from the newest of them with a
fresh optimizer; batches that made no version by then are handed out again.
"""

import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from harnessgym.errors import TrainerError
from harnessgym.metrics.lines import append
from harnessgym.run_config.run import RunConfig
from harnessgym.run_folder import RunFolder
from harnessgym.run_identity import run_of
from harnessgym.scheduling.staleness import VersionChain
from harnessgym.store import TraceStore, policies
from harnessgym.store.ledger import StepRecord, TrainedRollout, commit_step
from harnessgym.store.policies import PolicyVersion
from harnessgym.tokens import IdArray
from trainers.batch import LoadedGroup, ranges_of
from trainers.batch_collector import BatchCollector
from trainers.learner import TrainerSettings
from trainers.weights.agent import read_verified
from trainers.weights.export import write_model
from trainers.weights.manifest import newest_version, version_path
from trainers.weights.publish import Publisher


@dataclass(frozen=True, slots=True)
class TakenBatch:
    """A batch that was handed out, and the version that it will make."""

    groups: tuple[LoadedGroup, ...]
    parent: int
    """The version from which its step starts; it may not be published yet."""
    version: PolicyVersion
    chain: VersionChain
    """All versions up to `parent`."""
    waited_s: float

    def staleness(self, versions: IdArray) -> int:
        """Staleness of the oldest token, given the tokens' sampling versions, int32 [T]."""
        return self.chain.oldest(self.parent, [versions])

    def trained_with(self, advantages: Mapping[str, float]) -> tuple[TrainedRollout, ...]:
        """The ledger entries of its rollouts. `advantages` has one advantage per rollout id; others have
        zero.
        """
        members = [
            (member, rows)
            for group in self.groups
            for member, rows in zip(group.group.members, group.rows, strict=True)
        ]
        return tuple(
            TrainedRollout(
                member.rollout_id,
                sum(int(row.mask.sum()) for row in rows),
                self.chain.oldest(self.parent, (row.versions for row in rows)),
                ranges_of(rows, advantages.get(member.rollout_id, 0.0)),
            )
            for member, rows in members
        )


class TrainingRun:
    """A run whose policy is trained in this process. A context manager; `take` may be called from another
    thread.
    """

    def __init__(self, settings: TrainerSettings) -> None:
        self.folder = RunFolder(settings.run, settings.policy)
        self.config: RunConfig = self.folder.config().of_policy(settings.policy)
        _check(self.config)
        self.options = self.config.trainer
        self.store = TraceStore.open(self.folder.store_url(), synchronous=self.config.store.synchronous)
        run = self.store.read(lambda conn: run_of(conn, self.folder))
        if run is None:
            raise TrainerError(
                f"{self.folder.root} has no run in its store; start it with `harnessgym train`."
            )
        self.run_id = run.id
        self.policy_id = self.store.write(
            lambda conn: policies.register(conn, run.id, self.config.policy.name)
        )
        self._publisher = Publisher(
            self.folder.versions, self.store, run.id, self.policy_id, self.options.publish
        )
        # TRL's trainers choose experts themselves.
        own = self.config.trainer.model_copy(update={"routing_replay": "off"})
        self._collector = BatchCollector(self.store, run.id, self.config.model_copy(update={"trainer": own}))
        self._pending: list[TakenBatch] = []
        self._lock = threading.Lock()
        self._began = time.perf_counter()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.store.close()

    @property
    def newest(self) -> PolicyVersion | None:
        """The newest published version."""
        return self.store.read(lambda conn: policies.latest(conn, self.policy_id))

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments in which every TRL trainer must agree with the run, without TRL's own logs and
        checkpoints.
        """
        return {
            "output_dir": str(self.folder.of_policy / "trl"),
            "max_steps": self.steps_left,
            "temperature": self.config.sampling.temperature,
            "seed": self.config.seed,
            "use_cpu": self.options.device == "cpu",
            "bf16": False,
            "report_to": "none",
            "save_strategy": "no",
        }

    @property
    def steps_left(self) -> int:
        """The number of batches that the run still trains."""
        newest = self.newest
        return self.options.steps - (newest.step if newest else 0)

    @property
    def pending(self) -> int:
        """The number of batches that were handed out and have made no version yet."""
        with self._lock:
            return len(self._pending)

    @property
    def batch_rollouts(self) -> int:
        """Rollouts in a batch, if none is missing."""
        return self.options.groups_per_step * self.options.group_size

    def model_folder(self) -> Path:
        """A Hugging Face folder with the newest published weights, or the policy's own before the first
        version.
        """
        source = Path(self.config.policy.path)
        newest = self.newest
        if newest is None:
            return source
        folder = self.folder.of_policy / "trl" / "model"
        shutil.rmtree(folder, ignore_errors=True)
        write_model(source, read_verified(newest)[1], folder)
        return folder

    def begin(self, weights: dict[str, Tensor]) -> None:
        """Publish the starting weights, by Hugging Face name, as version 0 of a run without versions.

        Raises `TrainerError` if the run has versions and these are not the weights of the newest.
        """
        newest = self.newest
        if newest is not None:
            _, known = read_verified(newest)
            if known.keys() != weights.keys() or not all(
                torch.equal(tensor, weights[name].to(tensor.dtype)) for name, tensor in known.items()
            ):
                raise TrainerError(
                    f"The model is not version {newest.version} of the run, which it must be: load "
                    "`run.model_folder()`."
                )
        else:
            made = self._publisher.publish(0, None, weights, 0)
            start = PolicyVersion(
                0,
                None,
                made.kind,
                str(made.path),
                0,
                made.checksum,
                made.bytes,
                committed=True,
                orphaned=False,
            )
            self.store.write(lambda conn: policies.publish(conn, self.policy_id, start))

    def take(self, before_query: Callable[[], None] = lambda: None) -> TakenBatch:
        """The next batch; waits until its groups are complete. `before_query` is called before each query of
        the store; an exception from it ends the wait.

        Batches may be taken before earlier ones have made their versions; staleness counts from the version
        that they will make.
        """
        with self._lock:
            ahead = [batch.version for batch in self._pending]
            busy = frozenset(group.group.id for batch in self._pending for group in batch.groups)
        known = self.store.read(lambda conn: policies.versions(conn, self.policy_id))
        start = ahead[-1] if ahead else self.newest
        if start is None:
            raise TrainerError("The run has no policy version to train from: call `begin` first.")
        if start.step >= self.options.steps:
            raise TrainerError(
                f"The run has had all its {self.options.steps} steps: there is no further batch."
            )
        chain = VersionChain(
            [
                *known,
                *(version for version in ahead if version.version not in {item.version for item in known}),
            ]
        )
        groups = tuple(self._collector.groups(start.version, chain, busy, before_query))
        number = (
            max(start.version, *(item.version for item in known), newest_version(self.folder.versions)) + 1
        )
        version = replace(
            start, version=number, parent_version=start.version, step=start.step + 1, bytes=0, checksum=""
        )
        batch = TakenBatch(groups, start.version, version, chain, self._collector.waited_s)
        with self._lock:
            self._pending.append(batch)
        return batch

    def commit(self, weights: dict[str, Tensor], trained: Sequence[TrainedRollout]) -> int:
        """Publish the weights after the oldest taken batch, and enter it in the ledger; returns the version.

        The caller must not change `weights`, by Hugging Face name, afterwards; `trained` has all rollouts of
        the batch. Raises `TrainerError` if no batch was taken or weights are not finite; nothing is then
        published.
        """
        with self._lock:
            if not self._pending:
                raise TrainerError("No batch was taken for these weights: each version is one batch.")
            batch = self._pending[0]
        broken = next((name for name, tensor in weights.items() if not tensor.isfinite().all()), None)
        if broken:
            raise TrainerError(
                f"Tensor {broken} is not finite after step {batch.version.step}: nothing was published. "
                "Check lr and loss."
            )
        number = batch.version.version
        made = self._publisher.publish(number, batch.parent, weights, batch.version.step)
        version = replace(
            batch.version,
            kind=made.kind,
            path=str(version_path(self.folder.versions, number)),
            checksum=made.checksum,
            bytes=made.bytes,
        )
        excluded = tuple(tokens for group in batch.groups for tokens in group.excluded)
        record = StepRecord(
            version, tuple(group.group.id for group in batch.groups), tuple(trained), excluded
        )
        self.store.write(lambda conn: commit_step(conn, self.policy_id, record))
        with self._lock:
            self._pending.pop(0)
        self._publisher.collect()
        self._log(batch, trained)
        return number

    def _log(self, batch: TakenBatch, trained: Sequence[TrainedRollout]) -> None:
        """Append a line to the run's metrics."""
        now = time.perf_counter()
        given_up = self._collector.given_up(batch.parent)
        line = {
            "step": batch.version.step,
            "version": batch.version.version,
            "reward": float(np.concatenate([group.rewards for group in batch.groups]).mean()),
            "signal": float(np.mean([group.signal for group in batch.groups])),
            "staleness": max((entry.max_staleness for entry in trained), default=0),
            "reduced": sum(len(group.rewards) < group.group.size for group in batch.groups),
            "dropped": given_up.get("too_stale", 0),
            "requeued": given_up.get("requeued", 0),
            "no_signal": given_up.get("no_signal", 0),
            "wait_s": batch.waited_s,
            "step_s": max(0.0, now - self._began - batch.waited_s),
            "time": time.time(),
        }
        self._began = now
        append(self.folder.metrics_path, line)


def _check(config: RunConfig) -> None:
    """Raises `TrainerError` for settings that only HarnessGym's own trainers support."""
    trainer = config.trainer
    refused = {
        "trainer.processes": trainer.processes > 1,
        "trainer.stream": trainer.stream,
        "trainer.lora": trainer.lora.on,
        "trainer.dtype": trainer.dtype != "float32",
        "trainer.reward_shuffle": trainer.reward_shuffle,
        "filter.steps_kept": config.filter.steps_kept < 1,
        "replay.reuse": config.replay.reuse > 0,
        "replay.success_pool": config.replay.success_pool > 0,
    }
    wrong = next((name for name, is_set in refused.items() if is_set), None)
    if wrong:
        raise TrainerError(f"{wrong} is only supported by HarnessGym's trainers, not by TRL: leave it out.")
    if config.policies:
        raise TrainerError(
            "TRL trains one policy, and this run has several ([[policies]]): train them with algorithm = "
            "'grpo'."
        )
