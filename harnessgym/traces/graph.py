"""The orchestration graph of a rollout: agents, events, typed edges between events, and rewards.

Every call is an event of kind `llm_call` whose id is the call's, whether or not a row was written for it.
Temporal edges between successive calls of one agent are derived here, but for those that are stored because
they carry evidence.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from sqlalchemy import Connection

from harnessgym.store import edges, events
from harnessgym.store.edges import EdgeRow
from harnessgym.store.events import EventRow
from harnessgym.store.facts import (
    AgentFacts,
    CallFacts,
    RewardFacts,
    RolloutFacts,
    agents_of,
    calls_of,
    rewards_of,
    rollout_of,
)


@dataclass(frozen=True, slots=True)
class GraphEvent:
    """One event."""

    id: str
    kind: str
    t: float
    """Unix seconds."""
    agent_id: str | None
    """The agent that did it."""
    target_agent_id: str | None
    """The agent that it was done to."""
    call_id: str | None
    attributes: Mapping[str, Any]
    evidence: str | None
    confidence: float | None
    """None: observed, not inferred."""
    source: str
    span_id: str | None


@dataclass(frozen=True, slots=True)
class Edge:
    """How one event led to another."""

    kind: str
    source: str
    target: str
    evidence: str | None = None
    confidence: float | None = None


@dataclass(frozen=True, slots=True)
class Graph:
    """One rollout as a graph."""

    rollout: RolloutFacts
    agents: tuple[AgentFacts, ...]
    """In the order they appeared."""
    events: tuple[GraphEvent, ...]
    """In order of time."""
    edges: tuple[Edge, ...]
    """In order of kind, source and target, including temporal ones."""
    rewards: tuple[RewardFacts, ...]
    calls: Mapping[str, CallFacts]
    """By id."""

    def of_kind(self, kind: str) -> tuple[GraphEvent, ...]:
        """Return the events of one kind."""
        return tuple(event for event in self.events if event.kind == kind)


def graph(conn: Connection, rollout_id: str) -> Graph:
    """Read a rollout's graph. Raises `StoreError` if there is no such rollout."""
    rollout = rollout_of(conn, rollout_id)
    calls = calls_of(conn, rollout_id)
    known = {row.id: _event(row) for row in events.of_rollout(conn, rollout_id)}
    for call in calls:
        known.setdefault(call.id, _call_event(call))
    ordered = tuple(sorted(known.values(), key=lambda event: (event.t, event.id)))
    stored = _edges(edges.of_rollout(conn, rollout_id))
    derived = [edge for edge in _temporal(ordered) if (edge.kind, edge.source, edge.target) not in stored]
    joined = sorted((*stored.values(), *derived), key=lambda edge: (edge.kind, edge.source, edge.target))
    return Graph(
        rollout,
        tuple(agents_of(conn, rollout_id)),
        ordered,
        tuple(joined),
        tuple(rewards_of(conn, rollout_id)),
        {call.id: call for call in calls},
    )


def _call_event(call: CallFacts) -> GraphEvent:
    return GraphEvent(
        call.id, "llm_call", call.created_at, call.agent_id, None, call.id, {}, None, None, "proxy", None
    )


def _event(row: EventRow) -> GraphEvent:
    return GraphEvent(**{name: getattr(row, name) for name in GraphEvent.__dataclass_fields__})


def _edges(rows: Iterable[EdgeRow]) -> dict[tuple[str, str, str], Edge]:
    """Return the stored edges, of several with equal kind and ends the first."""
    out: dict[tuple[str, str, str], Edge] = {}
    for row in rows:
        edge = Edge(row.kind, row.source_event_id, row.target_event_id, row.evidence, row.confidence)
        out.setdefault((edge.kind, edge.source, edge.target), edge)
    return out


def _temporal(ordered: tuple[GraphEvent, ...]) -> list[Edge]:
    """Return the edges from each call of an agent to its next one."""
    by_agent: dict[str, list[GraphEvent]] = {}
    for event in ordered:
        if event.kind == "llm_call" and event.agent_id is not None:
            by_agent.setdefault(event.agent_id, []).append(event)
    return [
        Edge("temporal", one.id, other.id) for calls in by_agent.values() for one, other in pairwise(calls)
    ]
