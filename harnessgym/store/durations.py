"""What finished rollouts took: tokens per call, seconds between calls, seconds of grading, tokens per group.

Simulations use the durations to behave like a recorded run. The learner compares the lengths of trained
rollouts with those of all that ended; the former may be shorter.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any

from sqlalchemy import Connection, func, select

from harnessgym.store.tables import calls, groups, rollouts


@dataclass(frozen=True, slots=True)
class RolloutDurations:
    """The work of one finished rollout."""

    tokens: tuple[int, ...]
    """Sampled tokens per call."""
    read: tuple[int, ...]
    """New prompt tokens per call: those beyond the previous prompt and completion. The whole prompt for the
    first call."""
    between_s: tuple[float, ...]
    """Seconds from a call's answer to the next call."""
    grading_s: float


@dataclass(frozen=True, slots=True)
class GroupLength:
    """The graded rollouts of a group and their tokens."""

    id: str
    ordinal: int
    state: str
    rollouts: int
    tokens: int
    """Sampled by all these rollouts."""


def rollout_durations(conn: Connection, run_id: str) -> list[RolloutDurations]:
    """Return the durations of all finished rollouts of a run that called the policy."""
    names = (
        calls.c.rollout_id,
        calls.c.prompt_len,
        calls.c.completion_len,
        calls.c.timings,
        calls.c.created_at,
    )
    query = select(*names, rollouts.c.latencies).join(rollouts, rollouts.c.id == calls.c.rollout_id)
    finished = (rollouts.c.run_id == run_id) & (rollouts.c.status == "finished") & (calls.c.kind == "policy")
    rows = conn.execute(
        query.where(finished, calls.c.completion_len > 0).order_by(calls.c.rollout_id, calls.c.created_at)
    )
    return list(_of_each(rows.mappings()))


def lengths(conn: Connection, run_id: str, first: int) -> list[GroupLength]:
    """Return the training groups from the ordinal `first` on, in order of submission."""
    sampled = (
        select(
            rollouts.c.group_id,
            rollouts.c.id,
            func.coalesce(func.sum(calls.c.completion_len), 0).label("tokens"),
        )
        .join(groups, groups.c.id == rollouts.c.group_id)
        .outerjoin(calls, calls.c.rollout_id == rollouts.c.id)
        .where(groups.c.run_id == run_id, groups.c.purpose == "train", groups.c.ordinal >= first)
        .where(rollouts.c.status == "finished")
        .group_by(rollouts.c.group_id, rollouts.c.id)
        .subquery()
    )
    query = (
        select(
            groups.c.id,
            groups.c.ordinal,
            groups.c.state,
            func.count(sampled.c.id),
            func.coalesce(func.sum(sampled.c.tokens), 0),
        )
        .outerjoin(sampled, sampled.c.group_id == groups.c.id)
        .where(groups.c.run_id == run_id, groups.c.purpose == "train", groups.c.ordinal >= first)
        .group_by(groups.c.id, groups.c.ordinal, groups.c.state)
        .order_by(groups.c.ordinal)
    )
    return [
        GroupLength(group_id, ordinal, state, int(number), int(tokens))
        for group_id, ordinal, state, number, tokens in conn.execute(query)
    ]


def _of_each(rows: Any) -> Iterator[RolloutDurations]:
    for _, rollout_rows in groupby(rows, key=lambda row: row["rollout_id"]):
        one = list(rollout_rows)
        ends = [row["created_at"] + (row["timings"] or {}).get("total_s", 0.0) for row in one]
        grown = [
            later["prompt_len"] - row["prompt_len"] - row["completion_len"] for row, later in pairwise(one)
        ]
        yield RolloutDurations(
            tokens=tuple(row["completion_len"] for row in one),
            read=(one[0]["prompt_len"], *(max(0, number) for number in grown)),
            between_s=tuple(
                max(0.0, row["created_at"] - end) for row, end in zip(one[1:], ends, strict=False)
            ),
            grading_s=float((one[0]["latencies"] or {}).get("evaluate", 0.0)),
        )
