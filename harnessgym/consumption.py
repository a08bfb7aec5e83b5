"""Which groups the next batch is made of, and which are given up: pure decisions, for the trainer and the simulator alike.

Waiting keeps the order of submission, on which `admission` rests: then nothing gets too stale, and long rollouts are trained
on as often as short ones. Taking whatever is complete never waits for one slow group, and gives up what it leaves behind too
long.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

WhenStale = Literal["wait", "drop", "requeue"]
"""What becomes of order and age: see `choose`."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A group that was submitted and is neither consumed nor given up."""

    id: str
    ordinal: int
    """Its place in the order of submission."""
    complete: bool
    staleness: int
    """Of its oldest token if it were trained now; 0 if not complete."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What becomes of the candidates; those that are not named stay."""

    take: tuple[str, ...]
    """A whole batch, or empty: nothing can be trained yet."""
    drop: tuple[str, ...]
    """Too stale: given up."""
    requeue: tuple[str, ...]
    """Too stale: given up, and their tasks are submitted again first."""


def choose(candidates: Sequence[Candidate], batch: int, max_staleness: int, policy: WhenStale) -> Choice:
    """The next batch of `batch` groups, none of them staler than `max_staleness` (η).

    wait: strictly in order of submission, a gap is waited for. With admission nothing gets too stale; what still does (workers
    that served an old version for longer than they said) is dropped.
    drop, requeue: any complete groups, oldest first; those beyond η are given up.
    """
    ordered = sorted(candidates, key=lambda item: item.ordinal)
    stale = tuple(item.id for item in ordered if item.complete and item.staleness > max_staleness)
    usable = [item for item in ordered if item.id not in stale and (item.complete or policy == "wait")][:batch]
    whole = len(usable) == batch and all(item.complete for item in usable)
    take = tuple(item.id for item in usable) if whole else ()
    return Choice(take, () if policy == "requeue" else stale, stale if policy == "requeue" else ())
