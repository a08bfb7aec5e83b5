"""The rollout worker of TRL's asynchronous trainer: batches of a run, as the samples of its queue.

TRL takes samples one by one and makes no batches of its own; here each batch is exactly one of its steps, so
that a version is one batch and the ledger knows what was trained. A batch of fewer rows than a step takes
samples is filled up with samples of one masked token, which change nothing.

TRL's loader fetches a batch ahead of the one that is trained, so the run needs η of at least 1.
"""

import queue
import threading
import time
from collections import deque
from dataclasses import replace
from typing import Any

import numpy as np
from trl.experimental.async_grpo.async_rollout_worker import RolloutSample

from harnessgym.errors import TrainerError
from harnessgym.store.ledger import TrainedRollout
from harnessgym.traces.trajectories import Row
from trainers.advantages.channels import channels_of, check_channels, due
from trainers.advantages.estimator import make_estimator
from trainers.batch import LoadedGroup, make_batch
from trainers.trl_bridge.samples import one_advantage
from trainers.trl_bridge.training_run import TakenBatch, TrainingRun

_AHEAD = 2
"""Batches that TRL holds at one time: the one in training, and the one that its loader has prefetched."""
_POLL_S = 0.05
_FIRST = 1
"""TRL's number for the weights that training starts from."""


class _StoppedError(Exception):
    """The trainer has ended."""


class RolloutWorker:
    """TRL's `RolloutWorkerProtocol`. `args` is the `AsyncGRPOConfig` that the trainer gets; `async_arguments`
    has the values that the run needs.

    Advantages are those of `trainer.advantage`, one for all tokens of a rollout; only groups with a signal
    are given to TRL. A row that several versions sampled counts as sampled by the oldest of them. Raises
    `TrainerError` for arguments with which a batch would not be a step.
    """

    def __init__(self, run: TrainingRun, args: Any) -> None:
        _check_arguments(run, args)
        self.run = run
        self.places = int(args.per_device_train_batch_size)
        self.estimator = make_estimator(run.config, run.store)
        self.rollout_buffer: queue.Queue[RolloutSample] = queue.Queue()
        self.metrics_queue: queue.Queue[dict[str, float]] = queue.Queue()
        self.trained: deque[tuple[TrainedRollout, ...]] = deque()
        """Ledger entries of each batch that TRL holds."""
        self.model_version = 0
        """TRL's number for the newest weights; the run numbers its versions otherwise."""
        self._stopped = threading.Event()
        self._looked = time.monotonic()
        self._problem: Exception | None = None
        self._thread = threading.Thread(target=self._feed, name="rollout-worker", daemon=True)

    def start(self) -> None:
        """Begin to take batches."""
        self._looked = time.monotonic()
        self._thread.start()

    def stop(self) -> None:
        """Take no further batch."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def update_model_version(self, model_version: int) -> None:
        """Record TRL's number for the weights that it has just published."""
        self.model_version = model_version

    def check_health(self, stale_after_s: float) -> None:
        """Raises `TrainerError` if no batch can come: collecting one failed, or the store has not answered
        for `stale_after_s`.
        """
        if self._problem is not None:
            raise TrainerError(f"No further batch could be collected: {self._problem}") from self._problem
        if time.monotonic() - self._looked > stale_after_s:
            raise TrainerError(
                f"The store of {self.run.folder.root} has not answered for {stale_after_s:.0f} s."
            )

    def _feed(self) -> None:
        """Enqueue batches until the run has all its steps, then one step without effect, because TRL's loader
        fetches ahead.
        """
        try:
            steps = self.run.steps_left
            for index in range(steps):
                while self.run.pending >= _AHEAD:
                    self._look()
                    time.sleep(_POLL_S)
                self._put(self.run.take(self._look), _FIRST + index)
            self._enqueue([_still(_FIRST + steps)])
        except _StoppedError:
            return
        # Kept for the trainer's thread, which raises it in `check_health`.
        except Exception as error:  # noqa: BLE001
            self._problem = error

    def _look(self) -> None:
        self._looked = time.monotonic()
        if self._stopped.is_set():
            raise _StoppedError

    def _put(self, batch: TakenBatch, trained_from: int) -> None:
        """Enqueue a batch, which is trained from what TRL calls `trained_from`."""
        made = make_batch(batch.groups, batch.parent, batch.chain, self.estimator, None)
        if due(batch.version.step, self.run.options.steps):
            check_channels(channels_of(self.estimator), self.run.store, self.run.run_id)
        members = {
            member.rollout_id: (member, group) for group in batch.groups for member in group.group.members
        }
        samples = []
        for row, value in zip(made.rows, made.advantages, strict=True):
            member, group = members[row.rollout_id]
            version = trained_from - batch.staleness(row.versions)
            samples.append(_sample(group, row, member.reward, one_advantage(row, value), version))
        if len(samples) > self.places:
            raise TrainerError(
                f"The batch of step {batch.version.step} has {len(samples)} rows, and a step of TRL takes "
                f"{self.places} samples: raise per_device_train_batch_size, e.g. to {2 * len(samples)}."
            )
        self.trained.append(made.trained)
        self.metrics_queue.put({"reward": float(np.mean(made.rewards))})
        self._enqueue(samples or [_still(trained_from)])

    def _enqueue(self, samples: list[RolloutSample]) -> None:
        """Enqueue samples, then fillers up to a whole step, with the first sample's version."""
        filler = _filler(samples[0].group_id, samples[0].model_version)
        for sample in (*samples, *[filler] * (self.places - len(samples))):
            self.rollout_buffer.put(replace(sample, enqueued_at=time.time()))


def async_arguments(run: TrainingRun, rows: int = 1) -> dict[str, Any]:
    """The arguments that an `AsyncGRPOConfig` needs for this run, if rollouts have at most `rows` rows on
    average.
    """
    return run.arguments | {
        "per_device_train_batch_size": rows * run.batch_rollouts,
        "token_budget": 0,
        "max_staleness": run.options.max_staleness,
    }


def _check_arguments(run: TrainingRun, args: Any) -> None:
    """Raises `TrainerError` naming the argument that does not fit the run."""
    eta = run.options.max_staleness
    if not eta:
        raise TrainerError(
            "TRL's asynchronous trainer fetches a batch ahead of the one it trains: set max_staleness to 1 "
            "or more."
        )
    right = {
        "gradient_accumulation_steps": (
            args.gradient_accumulation_steps == 1,
            "1: a batch is one packed micro-batch",
        ),
        "weight_sync_steps": (args.weight_sync_steps == 1, "1: each step makes a policy version"),
        "token_budget": (
            args.token_budget is not None and args.token_budget <= 0,
            "0: a step takes a fixed number of samples",
        ),
        "max_staleness": (
            args.max_staleness >= eta,
            f"{eta} or more: the run bounds staleness, and TRL must drop nothing",
        ),
        "temperature": (
            args.temperature == run.config.sampling.temperature,
            f"{run.config.sampling.temperature}, as sampled",
        ),
        "max_steps": (
            0 < args.max_steps <= run.steps_left,
            f"at most {run.steps_left}, which the run has left",
        ),
    }
    for name, (fits, wanted) in right.items():
        if not fits:
            raise TrainerError(
                f"AsyncGRPOConfig has {name} = {getattr(args, name)}, but this run needs {wanted}. "
                "`async_arguments(run)` has the right values."
            )


def _sample(group: LoadedGroup, row: Row, reward: float, advantage: float, version: int) -> RolloutSample:
    return RolloutSample(
        prompt=[],
        completion=[],
        input_ids=row.ids.astype(np.int64),
        completion_mask=row.mask.astype(np.int64),
        old_log_probs=row.logprobs.astype(np.float32),
        advantage=advantage,
        model_version=version,
        group_id=group.group.ordinal,
        metrics={"reward": reward},
    )


def _still(version: int) -> RolloutSample:
    """A sample with a trained token of advantage 0: TRL fails on a step without any trained token."""
    ids = np.zeros(2, np.int64)
    mask = np.array([0, 1], np.int64)
    return RolloutSample([], [], ids, mask, np.zeros(2, np.float32), 0.0, version, 0, {})


def _filler(group_id: int, version: int) -> RolloutSample:
    """One token that is not trained."""
    ids = np.zeros(1, np.int64)
    return RolloutSample([], [], ids, ids, np.zeros(1, np.float32), 0.0, version, group_id, {})
