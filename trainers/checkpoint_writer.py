"""Checkpoints behind the training: copies are taken, and a thread writes and publishes them while the next
step is computed.

A step changes weights and optimizer in place; so the thread gets copies, and the next ones are taken only
when it is done with them. What it does with each is one function, in order: that is where a version is
published behind its checkpoint. At most one is on its way, so a kill costs one step.
"""

import copy
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch

from trainers.checkpoint import Checkpoint


class CheckpointWriter:
    """Runs `commit` on checkpoints, one at a time, in a thread or at once."""

    def __init__(self, commit: Callable[[Checkpoint], None], *, lazy: bool) -> None:
        self.lazy = lazy
        self._commit = commit
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending: Future[None] | None = None
        self._staging: Any = None

    def stage(self, state: dict[str, Any]) -> dict[str, Any]:
        """A copy of an optimizer's state that no step tears, in memory that is used again: it holds until the
        next one.

        Waits until the checkpoint before is committed, and raises what stopped it.
        """
        self.settle()
        if not self.lazy:
            return state
        self._staging = staged(state, self._staging)
        found: dict[str, Any] = self._staging
        return found

    def submit(self, state: Checkpoint) -> None:
        """Commit a checkpoint. Lazily: errors are raised by the next `stage`, `check` or `settle`."""
        if self.lazy:
            self._pending = self._thread.submit(self._commit, state)
        else:
            self._commit(state)

    def settle(self) -> None:
        """Wait until the last checkpoint is committed. Raises what stopped it."""
        pending = self._pending
        self._pending = None
        if pending is not None:
            pending.result()

    def check(self) -> None:
        """Raise what has stopped the last checkpoint, if anything has: nobody will sample from a version
        that never comes.
        """
        if self._pending is not None and self._pending.done():
            self.settle()

    def close(self) -> None:
        """Wait for the thread; what stopped a checkpoint is passed over. Raises nothing."""
        self._thread.shutdown(wait=True)


def staged(value: Any, into: Any = None) -> Any:
    """A copy of nested dicts, lists and tensors; tensors go into those that `into`, an earlier copy, has
    in their place.
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
