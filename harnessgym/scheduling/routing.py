"""Chooses the engine worker for a call. Pure functions: proxy and simulator make the same choice."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from harnessgym.store.workers import WorkerState

OVERLOAD_FACTOR = 2
OVERLOAD_SLACK = 4
"""A call leaves the worker that holds its prefix only if that one's load exceeds `FACTOR * least load +
SLACK`: recomputing a prefix costs about as much as waiting behind a few calls."""


@dataclass(frozen=True, slots=True)
class WorkerLoad:
    """What routing knows about a worker."""

    id: str
    version: int
    state: WorkerState
    load: int
    """Calls in flight."""
    suspect: bool = False
    """Whether it failed recently and has not answered a health check since."""


class Load(Protocol):
    """Anything with calls in flight."""

    @property
    def load(self) -> int:
        """Number of calls in flight."""
        ...


L = TypeVar("L", bound=Load)


def choose(
    workers: Sequence[WorkerLoad],
    *,
    prefix_owner: str | None = None,
    pin: int | None = None,
    min_version: int | None = None,
    rng: random.Random,
) -> str | None:
    """The worker for a call, or None while no worker may take it.

    It serves version `pin` if that is set, and at least `min_version`. The `prefix_owner`, whose cache holds
    the beginning of the prompt, is preferred unless overloaded; otherwise the less loaded of two drawn at
    random (Mitzenmacher, 2001).
    """
    usable = [worker for worker in workers if _may_take(worker, pin, min_version)]
    if not usable:
        return None
    owner = next((worker for worker in usable if worker.id == prefix_owner), None)
    return prefer(owner, rng.sample(usable, min(2, len(usable))), min(worker.load for worker in usable)).id


def prefer(owner: L | None, drawn: Sequence[L], least: int) -> L:
    """Among workers that may take a call, the prefix's owner or the less loaded of the drawn ones.

    For callers that track the least load themselves and cannot scan a thousand workers for every call.
    """
    if owner is not None and owner.load <= OVERLOAD_FACTOR * least + OVERLOAD_SLACK:
        return owner
    return min(drawn, key=lambda worker: worker.load)


def _may_take(worker: WorkerLoad, pin: int | None, min_version: int | None) -> bool:
    if worker.state != "ready" or worker.suspect:
        return False
    return (pin is None or worker.version == pin) and (min_version is None or worker.version >= min_version)
