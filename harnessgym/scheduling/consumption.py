"""Chooses the groups of the next batch and those to give up: pure functions for trainer and simulator.

`wait` keeps the order of submission, which `admission` relies on: nothing gets too stale, and long rollouts
are trained as often as short ones. `drop` and `requeue` take any complete groups: they never wait for one
slow group, but give up groups that get too stale.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

WhenStale = Literal["wait", "drop", "requeue"]
"""How order and staleness are handled; see `choose`."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A submitted group that is neither consumed nor given up."""

    id: str
    ordinal: int
    """Place in the order of submission."""
    complete: bool
    staleness: int
    """Staleness of its oldest token if it were trained now. For an open group only tokens known to be sampled
    count; 0 if there are none."""


@dataclass(frozen=True, slots=True)
class Replayable:
    """A group that was trained into a surviving version."""

    id: str
    ordinal: int
    trained: int
    """How often it was trained."""
    staleness: int
    """Staleness of its oldest token if it were trained again now."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What to do with the candidates. Those that are not listed stay."""

    take: tuple[str, ...]
    """A whole batch, or empty if nothing can be trained yet."""
    drop: tuple[str, ...]
    """Too stale; given up."""
    requeue: tuple[str, ...]
    """Too stale; given up, and their tasks are submitted again first."""


def choose(candidates: Sequence[Candidate], batch: int, max_staleness: int, policy: WhenStale) -> Choice:
    """The next batch of `batch` groups, none of them staler than `max_staleness` (η).

    wait: strictly in order of submission; an incomplete group holds up the batch. Admission keeps groups from
    getting too stale. One that does (a worker served an old version for longer than it reported) is dropped.
    drop, requeue: any complete groups, oldest first. Those beyond η are given up, open ones too, because
    staleness never decreases.
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
    """Groups that may be trained again, best first: at most `reuse` more times, and none staler than η.

    Those trained least often come first, and among them the stalest.
    """
    fit = [item for item in trained if item.trained <= reuse and item.staleness <= max_staleness]
    return tuple(
        item.id for item in sorted(fit, key=lambda item: (item.trained, -item.staleness, item.ordinal))
    )


def places_for_replays(
    ages: Sequence[int], batch: int, at_most: int, max_staleness: int, batches_left: int
) -> int:
    """How many places of the next batch may go to replays without making any outstanding group too stale.

    `ages` holds the outstanding groups in order of submission: the most staleness each would have if trained
    now. All of them must fit into the batches left, including this one.
    """

    def in_time(places: int) -> bool:
        # Each replay pushes a group back: the one at index `place` behind this batch is trained
        # `1 + place // batch` batches later, and gets that much staler.
        later = enumerate(ages[batch - places :])
        return all(
            age + 1 + place // batch <= max_staleness and 1 + place // batch < batches_left
            for place, age in later
        )

    return next((places for places in range(min(at_most, batch), 0, -1) if in_time(places)), 0)
