"""What the trainer consumes next, and what it gives up. Pure: the trainer and the simulator make the same choice."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

ConsumptionPolicy = Literal["wait", "drop", "requeue"]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A group that was submitted and neither consumed nor given up."""

    id: str
    ordinal: int
    """Its place in order of submission."""
    complete: bool
    staleness: int
    """Of its oldest token if it were trained now; 0 if it is not complete."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What becomes of the candidates; those it does not name stay."""

    take: tuple[str, ...]
    """A whole batch, or empty: nothing can be trained yet."""
    drop: tuple[str, ...]
    """Too stale: given up."""
    requeue: tuple[str, ...]
    """Too stale: given up, and their tasks are submitted again before any other."""


def choose(candidates: Sequence[Candidate], batch: int, max_staleness: int, policy: ConsumptionPolicy) -> Choice:
    """The next `batch` groups.

    `wait` takes them strictly in order of submission and waits for a gap: under the admission rule of
    `harnessgym.admission` nothing gets too stale then, and what does all the same (training that went on from an earlier
    version) is dropped. `drop` and `requeue` take any complete groups, oldest submission first.
    """
    ordered = sorted(candidates, key=lambda item: item.ordinal)
    stale = tuple(item.id for item in ordered if item.complete and item.staleness > max_staleness)
    fresh = [item for item in ordered if not (item.complete and item.staleness > max_staleness)]
    if policy == "wait":
        head = fresh[:batch]
        ready = [item for item in head if item.complete]
    else:
        ready = [item for item in fresh if item.complete][:batch]
    take = tuple(item.id for item in ready) if len(ready) == batch else ()
    return Choice(take, stale if policy != "requeue" else (), stale if policy == "requeue" else ())
