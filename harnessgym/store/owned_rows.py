"""Which rows belong to rollouts, in the order in which they refer to each other: to rows before them, or
of their table.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, Table, func, select

from harnessgym.store.tables import (
    advantages,
    agents,
    bodies,
    calls,
    edges,
    events,
    exclusions,
    rewards,
    rollouts,
    segments,
    sessions,
    trained,
)

Rollouts = Sequence[str] | Select[tuple[str]]
"""Their ids, or a query of them."""
OWNED: tuple[Table, ...] = (
    sessions, agents, segments, calls, bodies, events, edges, rewards, exclusions, trained, advantages
)  # fmt: skip
"""All but the rollouts themselves, and the texts that bodies share."""
PARENTS = {
    "agents": "parent_agent_id",
    "segments": "parent_id",
    "calls": "parent_call_id",
    "bodies": "base_id",
}
"""Columns by which a row names another one of its table."""
_CALLS = 2_000
"""Calls of the rollouts that are dealt with at once, as far as one of them has not more."""


def owned(table: Table, ids: Rollouts) -> ColumnElement[bool]:
    """Whether a row of one of these tables belongs to one of the rollouts."""
    if table is segments:
        return segments.c.session_id.in_(select(sessions.c.id).where(sessions.c.rollout_id.in_(ids)))
    if table is bodies:
        return bodies.c.call_id.in_(select(calls.c.id).where(calls.c.rollout_id.in_(ids)))
    if table is advantages:
        return advantages.c.trained_id.in_(select(trained.c.id).where(trained.c.rollout_id.in_(ids)))
    return table.c.rollout_id.in_(ids)


def in_portions(conn: Connection, ids: Select[tuple[str]]) -> list[list[str]]:
    """The rollouts of a query, oldest first, in portions that fit into memory and into one transaction."""
    made = (
        select(func.count()).select_from(calls).where(calls.c.rollout_id == rollouts.c.id).scalar_subquery()
    )
    query = (
        select(rollouts.c.id, made)
        .where(rollouts.c.id.in_(ids))
        .order_by(rollouts.c.created_at, rollouts.c.id)
    )
    out = list[list[str]]()
    room = 0
    for rollout_id, count in conn.execute(query):
        if room < count + 1:
            out.append([])
            room = _CALLS
        out[-1].append(rollout_id)
        room -= count + 1
    return out


def parents_first(rows: Sequence[Mapping[str, Any]], parent: str) -> Iterator[Mapping[str, Any]]:
    """The same rows, each behind the one that it names in `parent`, where that is among them."""
    waiting = {row["id"]: row for row in rows}
    for row in rows:
        path = []
        at: Mapping[str, Any] | None = waiting.pop(row["id"], None)
        while at is not None:
            path.append(at)
            at = waiting.pop(at[parent], None)
        yield from reversed(path)
