"""Events of a rollout: what its agents did, and what happened to them.

The event of a model call has the call's own id.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, bindparam, func, insert, select, update

from harnessgym.store.prepared import Prepared
from harnessgym.store.tables import agents, events, new_id


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
    """The agent that did it."""
    evidence: str | None = None
    confidence: float | None = None
    """0 to 1. None: observed, not inferred."""
    id: str = field(default_factory=new_id)
    target_agent_id: str | None = None
    """The agent that it was done to."""
    source: str = "proxy"
    """proxy: from traffic that passed the proxy. otlp: from spans. import: from a file. node: observed by the
    node. sandbox: faults."""
    span_id: str | None = None


_COLUMNS = tuple(EventRow.__dataclass_fields__)


def add(conn: Connection, event: EventRow) -> None:
    """Insert an event."""
    add_many(conn, [event])


def add_many(conn: Connection, rows: Sequence[EventRow]) -> None:
    """Insert events. The calls and agents that they name must exist.

    A spawn event also sets the spawned agent's parent and spawn event, unless they are set already.
    """
    now = time.time()
    _INSERT.run_many(
        conn, [{**{name: getattr(row, name) for name in _COLUMNS}, "created_at": now} for row in rows]
    )
    for row in rows:
        if row.kind == "spawn" and row.target_agent_id is not None:
            _STARTED.run(conn, {"started": row.target_agent_id, "spawn": row.id, "starter": row.agent_id})


def of_rollout(conn: Connection, rollout_id: str, kind: str | None = None) -> Sequence[EventRow]:
    """Return a rollout's events in order of time, of one kind or all."""
    columns = [events.c[name] for name in _COLUMNS]
    query = select(*columns).where(events.c.rollout_id == rollout_id).order_by(events.c.t, events.c.id)
    if kind is not None:
        query = query.where(events.c.kind == kind)
    return [EventRow(**row) for row in conn.execute(query).mappings()]


_INSERT = Prepared(insert(events), (*_COLUMNS, "created_at"))
_STARTED = Prepared(
    update(agents)
    .where(agents.c.id == bindparam("started"))
    .values(
        spawn_event_id=func.coalesce(agents.c.spawn_event_id, bindparam("spawn")),
        parent_agent_id=func.coalesce(agents.c.parent_agent_id, bindparam("starter")),
    )
)
