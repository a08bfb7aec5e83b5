"""Which rows belong to rollouts, and in which order their tables refer to each other.

Rows refer only to tables that come earlier in `OWNED`, or to rows of their own table.
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
    routed_experts,
    segments,
    sessions,
    trained,
)

Rollouts = Sequence[str] | Select[tuple[str]]
"""Ids of rollouts, or a query of ids."""
OWNED: tuple[Table, ...] = (
    sessions, agents, segments, calls, routed_experts, bodies, events, edges, rewards, exclusions, trained,
    advantages,
)  # fmt: skip
"""All tables with rows of rollouts, except `rollouts` itself and the texts that bodies share."""
PARENTS = {
    "agents": "parent_agent_id",
    "segments": "parent_id",
    "calls": "parent_call_id",
    "bodies": "base_id",
}
"""Columns that refer to another row of the same table."""
_CALLS = 2_000
"""Maximum number of calls in a portion of rollouts. One rollout with more calls is a portion by itself."""


def owned(table: Table, ids: Rollouts) -> ColumnElement[bool]:
    """Return the condition that a row of one of these tables belongs to one of the rollouts."""
    if table is segments:
        return segments.c.session_id.in_(select(sessions.c.id).where(sessions.c.rollout_id.in_(ids)))
    if table in (bodies, routed_experts):
        return table.c.call_id.in_(select(calls.c.id).where(calls.c.rollout_id.in_(ids)))
    if table is advantages:
        return advantages.c.trained_id.in_(select(trained.c.id).where(trained.c.rollout_id.in_(ids)))
    return table.c.rollout_id.in_(ids)


def in_portions(conn: Connection, ids: Select[tuple[str]]) -> list[list[str]]:
    """Return the rollouts of a query, oldest first, in portions that fit into memory and one transaction."""
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
    """Yield the rows so that each follows the one that its column `parent` names, if that is among them."""
    # Walk up from each row to the first ancestor that was yielded already or is not here, then yield the path
    # from the top. A loop, not recursion: a chain may be thousands of rows long.
    waiting = {row["id"]: row for row in rows}
    for row in rows:
        path = []
        at: Mapping[str, Any] | None = waiting.pop(row["id"], None)
        while at is not None:
            path.append(at)
            at = waiting.pop(at[parent], None)
        yield from reversed(path)
