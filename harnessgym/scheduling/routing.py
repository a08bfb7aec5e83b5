"""Which engine worker takes a call. Pure: the proxy and the simulator make the same choice from the same
facts.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from harnessgym.store.workers import WorkerState

OVERLOAD_FACTOR = 2
OVERLOAD_SLACK = 4
"""The worker that holds a prefix is left only when its load exceeds `FACTOR * least load + SLACK`: to
compute a prefix again costs about as much as waiting behind a few calls."""


@dataclass(frozen=True, slots=True)
class WorkerLoad:
    """What routing knows of a worker."""

    id: str
    version: int
    state: WorkerState
    load: int
    """Calls in flight there."""
    suspect: bool = False
    """It failed a moment ago and has not answered a health check since."""


class Load(Protocol):
    """Whatever has calls in flight."""

    @property
    def load(self) -> int:
        """How many."""
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
    """The worker for a call, or None while there is none that may take it.

    It serves version `pin` if one is set and at least `min_version`. It is the `prefix_owner`, whose cache
    holds the prompt's beginning, unless that is overloaded; otherwise the less loaded of two drawn at random
    (Mitzenmacher, 2001).
    """
    usable = [worker for worker in workers if _may_take(worker, pin, min_version)]
    if not usable:
        return None
    owner = next((worker for worker in usable if worker.id == prefix_owner), None)
    return prefer(owner, rng.sample(usable, min(2, len(usable))), min(worker.load for worker in usable)).id


def prefer(owner: L | None, drawn: Sequence[L], least: int) -> L:
    """Among workers that may take a call: the prefix's owner, or the less loaded of the drawn ones.

    `choose` for callers that keep the least load of all workers themselves, and cannot look at a thousand for
    every call.
    """
    if owner is not None and owner.load <= OVERLOAD_FACTOR * least + OVERLOAD_SLACK:
        return owner
    return min(drawn, key=lambda worker: worker.load)


def _may_take(worker: WorkerLoad, pin: int | None, min_version: int | None) -> bool:
    if worker.state != "ready" or worker.suspect:
        return False
    return (pin is None or worker.version == pin) and (min_version is None or worker.version >= min_version)
