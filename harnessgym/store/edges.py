"""Edges between the events of a rollout: how one event led to another.

Edges between successive calls of one agent are stored only if they carry evidence; readers derive the others.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from sqlalchemy import Connection, insert, select

from harnessgym.store.prepared import Prepared
from harnessgym.store.tables import edges, new_id

EdgeKind = Literal[
    "temporal", "causal", "spawn", "message", "tool_dependency", "return", "aggregate", "safety_flow"
]


@dataclass(frozen=True, slots=True)
class EdgeRow:
    """One edge."""

    rollout_id: str
    kind: EdgeKind
    source_event_id: str
    target_event_id: str
    evidence: str | None = None
    confidence: float | None = None
    """0 to 1. None: observed, not inferred."""
    id: str = field(default_factory=new_id)


_COLUMNS = tuple(EdgeRow.__dataclass_fields__)


def add_many(conn: Connection, rows: Sequence[EdgeRow]) -> None:
    """Insert edges. The events at both ends must exist."""
    now = time.time()
    _INSERT.run_many(
        conn, [{**{name: getattr(row, name) for name in _COLUMNS}, "created_at": now} for row in rows]
    )


def of_rollout(conn: Connection, rollout_id: str, kind: EdgeKind | None = None) -> list[EdgeRow]:
    """Return a rollout's edges in the order they were written, of one kind or all."""
    columns = [edges.c[name] for name in _COLUMNS]
    query = select(*columns).where(edges.c.rollout_id == rollout_id).order_by(edges.c.created_at, edges.c.id)
    if kind is not None:
        query = query.where(edges.c.kind == kind)
    return [EdgeRow(**row) for row in conn.execute(query).mappings()]


_INSERT = Prepared(insert(edges), (*_COLUMNS, "created_at"))
