"""Trainer checkpoints: everything that makes the next step what it would have been, written whole or not at
all.

A checkpoint holds the weights, optimizer and random state after a step, and the record of that step for the
store. It is written before the version is published, so whatever is published can be reproduced; a trainer
that resumes first replays the record. Which groups are next, and which were given up, is in the store alone
and is written there at once.
"""

import os
import pickle
import random
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from harnessgym.errors import TrainerError
from harnessgym.store.ledger import StepRecord

_KEPT = 2
"""Checkpoints left behind: the newest, and one in case its disk sectors rot."""


@dataclass(frozen=True, slots=True)
class RandomState:
    """Every global generator of a process that a step, or a plugin in it, may draw from."""

    torch: torch.Tensor
    numpy: dict[str, Any]
    python: tuple[Any, ...]

    @classmethod
    def here(cls) -> "RandomState":
        """Those of this process, copied."""
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
    """Of each process that trained, by rank."""
    record: StepRecord | None
    """What the store must learn from the last step; None for the start."""
    metrics: dict[str, float]
    proximal: dict[str, Any] | None = None
    """Of the proximal policy, if it has a state; see `trainers.proximal`."""
    critic: dict[str, Any] | None = None
    """Of the critic, if there is one: its weights and its optimizer."""
    adapters: dict[str, Any] | None = None
    """Where adapters are trained: `trainers.lora.Lora.state`. The file then has no weights; they are
    merged again."""


def save(root: Path, checkpoint: Checkpoint) -> Path:
    """Write `root/step-{n:06d}`, synced to disk, and drop the oldest ones."""
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
    temporary.rename(target)
    _sync_folder(root)
    for old in steps(root)[:-_KEPT]:
        shutil.rmtree(root / f"step-{old:06d}")
    return target


def steps(root: Path) -> list[int]:
    """Steps that have a checkpoint, in order."""
    return sorted(int(path.parent.name.removeprefix("step-")) for path in root.glob("step-*/state.pt"))


def _sync_folder(root: Path) -> None:
    descriptor = os.open(root, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def load_newest(root: Path) -> Checkpoint | None:
    """The newest checkpoint, None if there is none. Raises `TrainerError` if it cannot be read."""
    if root.is_dir():
        for leftover in root.glob(".writing-*"):
            shutil.rmtree(leftover)
    found = steps(root)
    if not found:
        return None
    path = root / f"step-{found[-1]:06d}" / "state.pt"
    try:
        values = torch.load(path, map_location="cpu", weights_only=False)
        if "random" in values:  # of a release whose trainer was one process
            values["randoms"] = (values.pop("random"),)
        loaded = Checkpoint(**values)
        if not all(isinstance(found, RandomState) for found in loaded.randoms):
            raise TypeError("another release made it")
    except (OSError, RuntimeError, EOFError, TypeError, pickle.UnpicklingError) as error:
        raise TrainerError(
            f"The checkpoint {path} cannot be read ({error}). Remove its folder to resume from the one "
            "before it or, "
            f"if there is none, from the newest published weights with a fresh optimizer."
        ) from error
    return loaded
