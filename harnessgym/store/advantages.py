"""Advantages that sampled tokens were trained with, stored as ranges of equal value next to the ledger.

They are written in the same transaction as their ledger row. A segment has no ranges in a step that excluded
it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Select, insert, select

from harnessgym.store.prepared import Prepared
from harnessgym.store.tables import advantages, calls, new_id, rollouts, trained

_AT_ONCE = 5_000
"""Maximum number of calls in one query; databases limit the parameters of a statement."""


@dataclass(frozen=True, slots=True)
class AdvantageRange:
    """Completion tokens [start, end) of a call that were trained with the same advantage."""

    call_id: str
    start: int
    end: int
    value: float


@dataclass(frozen=True, slots=True)
class StoredAdvantage:
    """A range and the step that trained it."""

    call_id: str
    segment_id: str
    start: int
    end: int
    value: float
    step: int
    version: int
    """The policy version that the step published."""


@dataclass(frozen=True, slots=True)
class SegmentAdvantage:
    """A range of a segment and the ledger row of its step."""

    rollout_id: str
    trained_id: str
    segment_id: str
    start: int
    end: int
    value: float


def add(conn: Connection, by_trained: Mapping[str, Sequence[AdvantageRange]]) -> None:
    """Write the ranges of a step, keyed by the id of their ledger row. Skips calls without tokens."""
    segments = dict(_segments(conn, {item.call_id for ranges in by_trained.values() for item in ranges}))
    rows = [
        {
            "id": new_id(),
            "trained_id": trained_id,
            "segment_id": segment,
            "start": item.start,
            "end": item.end,
            "value": item.value,
        }
        for trained_id, ranges in by_trained.items()
        for item in ranges
        if (segment := segments.get(item.call_id)) is not None
    ]
    if rows:
        _INSERT.run_many(conn, rows)


def of_rollout(conn: Connection, rollout_id: str) -> list[StoredAdvantage]:
    """Return the advantages of a rollout's tokens by step, then in order of its calls.

    Includes orphaned steps.
    """
    columns = [
        calls.c.id.label("call_id"),
        advantages.c.segment_id,
        advantages.c.start,
        advantages.c.end,
        advantages.c.value,
    ]
    query = (
        select(*columns, trained.c.step, trained.c.version)
        .join(trained, trained.c.id == advantages.c.trained_id)
        .join(calls, calls.c.completion_segment == advantages.c.segment_id)
        .where(trained.c.rollout_id == rollout_id, calls.c.rollout_id == rollout_id)
    )
    ordered = query.order_by(trained.c.version, calls.c.created_at, calls.c.id, advantages.c.start)
    return [StoredAdvantage(**row) for row in conn.execute(ordered).mappings()]


def of_run(conn: Connection, run_id: str) -> list[SegmentAdvantage]:
    """Return the advantages of all rollouts of a run. Includes orphaned steps."""
    query = _of_segments().join(rollouts, rollouts.c.id == trained.c.rollout_id)
    return [SegmentAdvantage(*row) for row in conn.execute(query.where(rollouts.c.run_id == run_id))]


def of_trainings(conn: Connection, trained_ids: Sequence[str]) -> list[SegmentAdvantage]:
    """Return the advantages of some rows of the ledger, in order of their starts."""
    query = _of_segments().where(advantages.c.trained_id.in_(trained_ids)).order_by(advantages.c.start)
    return [SegmentAdvantage(*row) for row in conn.execute(query)]


def _of_segments() -> Select[Any]:
    columns = [advantages.c[name] for name in SegmentAdvantage.__dataclass_fields__ if name in advantages.c]
    return select(trained.c.rollout_id, *columns).join(trained, trained.c.id == advantages.c.trained_id)


def _segments(conn: Connection, call_ids: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield (call id, completion segment id) of the calls that have a completion."""
    wanted = sorted(call_ids)
    for start in range(0, len(wanted), _AT_ONCE):
        query = select(calls.c.id, calls.c.completion_segment).where(
            calls.c.id.in_(wanted[start : start + _AT_ONCE])
        )
        yield from (
            (row.id, row.completion_segment)
            for row in conn.execute(query)
            if row.completion_segment is not None
        )


_INSERT = Prepared(insert(advantages), advantages.c.keys())
