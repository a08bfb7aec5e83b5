"""Which groups the next batch is made of, and which are given up: pure decisions, for the trainer and the
simulator alike.

Waiting keeps the order of submission, on which `admission` rests: then nothing gets too stale, and long
rollouts are trained on as often as short ones. Taking whatever is complete never waits for one slow group,
and gives up what it leaves behind too long.
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
    """Of its oldest token if it were trained now; of an open one, of what is known to be sampled, 0 if
    nothing is."""


@dataclass(frozen=True, slots=True)
class Replayable:
    """A group that was trained, along the surviving chain of versions."""

    id: str
    ordinal: int
    trained: int
    """How often."""
    staleness: int
    """Of its oldest token if it were trained again now."""


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

    wait: strictly in order of submission, a gap is waited for. With admission nothing gets too stale; what
    still does (workers that served an old version for longer than they said) is dropped. drop, requeue: any
    complete groups, oldest first; those beyond η are given up, open ones too: no token gets younger.
    """
    ordered = sorted(candidates, key=lambda item: item.ordinal)
    done = [item for item in ordered if item.complete or policy != "wait"]
    stale = tuple(item.id for item in done if item.staleness > max_staleness)
    usable = [item for item in ordered if item.id not in stale and (item.complete or policy == "wait")][
        :batch
    ]
    whole = len(usable) == batch and all(item.complete for item in usable)
    take = tuple(item.id for item in usable) if whole else ()
    return Choice(take, () if policy == "requeue" else stale, stale if policy == "requeue" else ())


def replay(trained: Sequence[Replayable], reuse: int, max_staleness: int) -> tuple[str, ...]:
    """The groups that may be trained again, best first: no more than `reuse` further times, and none staler
    than η.

    Those trained least often come first, among them those that have least time left.
    """
    fit = [item for item in trained if item.trained <= reuse and item.staleness <= max_staleness]
    return tuple(
        item.id for item in sorted(fit, key=lambda item: (item.trained, -item.staleness, item.ordinal))
    )


def places_for_replays(
    ages: Sequence[int], batch: int, at_most: int, max_staleness: int, batches_left: int
) -> int:
    """How many places of the next batch may go to groups that were trained before, so that no other gets too
    stale for it.

    `ages` are those of the groups that stand, in order of submission: the staleness of each if it were
    trained now, at most. All must fit into the batches that are left, this one among them.
    """

    def in_time(places: int) -> bool:
        later = enumerate(ages[batch - places :])
        return all(
            age + 1 + place // batch <= max_staleness and 1 + place // batch < batches_left
            for place, age in later
        )

    return next((places for places in range(min(at_most, batch), 0, -1) if in_time(places)), 0)
