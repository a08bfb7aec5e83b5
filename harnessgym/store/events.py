"""Events of a rollout: what happened that is not a call."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, insert, select

from harnessgym.store.tables import events, new_id


@dataclass(frozen=True, slots=True)
class EventRow:
    """One event."""

    rollout_id: str
    kind: str
    attributes: dict[str, Any] = field(default_factory=dict)
    t: float = field(default_factory=time.time)
    """Unix seconds."""
    call_id: str | None = None
    agent_id: str | None = None
    evidence: str | None = None
    confidence: float | None = None
    id: str = field(default_factory=new_id)


def add(conn: Connection, event: EventRow) -> None:
    """Write an event."""
    conn.execute(insert(events).values({name: getattr(event, name) for name in EventRow.__dataclass_fields__}))


def of_rollout(conn: Connection, rollout_id: str, kind: str | None = None) -> Sequence[EventRow]:
    """A rollout's events in order of time, of one kind or all."""
    columns = [events.c[name] for name in EventRow.__dataclass_fields__]
    query = select(*columns).where(events.c.rollout_id == rollout_id).order_by(events.c.t, events.c.id)
    if kind is not None:
        query = query.where(events.c.kind == kind)
    return [EventRow(**row) for row in conn.execute(query).mappings()]
