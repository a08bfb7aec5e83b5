"""Trainer checkpoints: all state that the next step depends on, written atomically.

A checkpoint holds the weights, optimizer and random state after a step, and the step's record for the store.
It is written before the version is published, so every published version can be reproduced. A trainer that
resumes first writes the record to the store again. Which groups are next, and which were given up, is only in
the store.

`CheckpointWriter` writes lazily: it copies the state, and a thread writes and publishes it while the next
step is computed. A step changes weights and optimizer in place, so the thread needs copies, and the next ones
are made only after it has finished. At most one checkpoint is in flight, so a kill costs at most one step.
"""

import copy
import os
import pickle
import random
import shutil
import tempfile
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from harnessgym.errors import TrainerError
from harnessgym.store.ledger import StepRecord

_KEPT = 2
"""Checkpoints that are kept: the newest, and the one before in case it cannot be read."""


@dataclass(frozen=True, slots=True)
class RandomState:
    """The states of a process's global generators, from which a step or a plugin may draw."""

    torch: torch.Tensor
    numpy: dict[str, Any]
    python: tuple[Any, ...]

    @classmethod
    def here(cls) -> "RandomState":
        """Copies of this process's states."""
        return cls(torch.get_rng_state(), dict(np.random.get_state(legacy=False)), random.getstate())

    def restore(self) -> None:
        """Set this process's generators to these."""
        torch.set_rng_state(self.torch)
        np.random.set_state(self.numpy)
        random.setstate(self.python)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """State after `step` steps."""

    step: int
    version: int
    weights: dict[str, torch.Tensor]
    """Hugging Face names, as published."""
    optimizer: dict[str, Any]
    randoms: tuple[RandomState, ...]
    """The random states of the trainer's processes, by rank."""
    record: StepRecord | None
    """The last step's record for the store; None before the first step."""
    metrics: dict[str, float]
    proximal: dict[str, Any] | None = None
    """State of the proximal policy, if it has one; see `trainers.proximal`."""
    critic: dict[str, Any] | None = None
    """Weights and optimizer of the critic, if there is one."""
    adapters: dict[str, Any] | None = None
    """`trainers.lora.Lora.state`, if adapters are trained. The file then has no weights; they are merged
    again."""
    references: dict[str, Any] | None = None
    """States of the reference policy and the teacher, if there are any; see `trainers.reference`."""
    run: str = ""
    """Id of the run that saved it; empty if an earlier release did."""


def save(root: Path, checkpoint: Checkpoint) -> Path:
    """Write `root/step-{n:06d}`, synced to disk, and remove the oldest checkpoints."""
    root.mkdir(parents=True, exist_ok=True)
    target = root / f"step-{checkpoint.step:06d}"
    temporary = Path(tempfile.mkdtemp(dir=root, prefix=".writing-"))
    with (temporary / "state.pt").open("wb") as file:
        values = {name: getattr(checkpoint, name) for name in Checkpoint.__dataclass_fields__}
        torch.save(values if checkpoint.adapters is None else values | {"weights": {}}, file)
        file.flush()
        os.fsync(file.fileno())
    if target.exists():
        shutil.rmtree(target)
    # The file is synced before the rename and the folder after it: after a power failure a folder of this
    # name has the whole checkpoint. Old ones are removed last, so at every moment one can be read.
    temporary.rename(target)
    _sync_folder(root)
    for old in steps(root)[:-_KEPT]:
        shutil.rmtree(root / f"step-{old:06d}")
    return target


def steps(root: Path) -> list[int]:
    """The steps that have a checkpoint, in order."""
    return sorted(int(path.parent.name.removeprefix("step-")) for path in root.glob("step-*/state.pt"))


def _sync_folder(root: Path) -> None:
    descriptor = os.open(root, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def load_newest(root: Path) -> Checkpoint | None:
    """The newest checkpoint; None if there is none. Raises `TrainerError` if it cannot be read."""
    if root.is_dir():
        for leftover in root.glob(".writing-*"):
            shutil.rmtree(leftover)
    known = steps(root)
    if not known:
        return None
    path = root / f"step-{known[-1]:06d}" / "state.pt"
    try:
        values = torch.load(path, map_location="cpu", weights_only=False)
        if "random" in values:  # from a release whose trainer had one process
            values["randoms"] = (values.pop("random"),)
        loaded = Checkpoint(**values)
        if not all(isinstance(state, RandomState) for state in loaded.randoms):
            raise TypeError("another release made it")
    except (OSError, RuntimeError, EOFError, TypeError, pickle.UnpicklingError) as error:
        raise TrainerError(
            f"The checkpoint {path} cannot be read ({error}). Remove its folder to resume from the previous "
            "one or, if there is none, from the newest published weights with a fresh optimizer."
        ) from error
    return loaded


class CheckpointWriter:
    """Runs `commit` on checkpoints, one at a time: in a thread if `lazy`, else at once."""

    def __init__(self, commit: Callable[[Checkpoint], None], *, lazy: bool) -> None:
        self.lazy = lazy
        self._commit = commit
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending: Future[None] | None = None
        self._staging: Any = None

    def stage(self, state: dict[str, Any]) -> dict[str, Any]:
        """A copy of an optimizer's state that the next step does not change; valid until the next call.

        Waits until the previous checkpoint is committed, and raises its error.
        """
        # The copy goes into the memory of the previous one, so the thread must have finished with that.
        self.settle()
        if not self.lazy:
            return state
        self._staging = staged(state, self._staging)
        copied: dict[str, Any] = self._staging
        return copied

    def submit(self, state: Checkpoint) -> None:
        """Commit a checkpoint. If lazy, the next `stage`, `check` or `settle` raises its error."""
        if self.lazy:
            self._pending = self._thread.submit(self._commit, state)
        else:
            self._commit(state)

    def settle(self) -> None:
        """Wait until the last checkpoint is committed. Raises its error."""
        pending = self._pending
        self._pending = None
        if pending is not None:
            pending.result()

    def check(self) -> None:
        """Raise the error of the last checkpoint, if it has failed. Call this while waiting for groups: they
        will not come if engines wait for a version that is never published.
        """
        if self._pending is not None and self._pending.done():
            self.settle()

    def close(self) -> None:
        """Wait for the thread. Raises nothing, not even the error of a checkpoint."""
        self._thread.shutdown(wait=True)


def staged(value: Any, into: Any = None) -> Any:
    """A copy of nested dicts, lists and tensors. It reuses the tensors of `into`, an earlier copy, where
    shape and dtype agree.
    """
    if isinstance(value, torch.Tensor):
        if isinstance(into, torch.Tensor) and (into.shape, into.dtype) == (value.shape, value.dtype):
            return into.copy_(value.detach())
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        known = into if isinstance(into, dict) else {}
        return {key: staged(item, known.get(key)) for key, item in value.items()}
    if isinstance(value, list):
        known_list = into if isinstance(into, list) and len(into) == len(value) else [None] * len(value)
        return [staged(item, old) for item, old in zip(value, known_list, strict=True)]
    return copy.deepcopy(value)
