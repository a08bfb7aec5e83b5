"""The events and edges that spans add to those that the proxy recorded.

If the proxy already recorded the event that a span reports, no second event is written: the span's edges
start or end at the recorded one. Ids are derived from rollout, span and part, so the same spans always give
the same rows.
"""

import hashlib
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from harnessgym.store.edges import EdgeKind, EdgeRow
from harnessgym.store.events import EventRow
from proxies.otlp.conventions import SpanReport

SOURCE = "otlp"
_TELLING = ("channel", "decision", "tool")
"""Attributes that distinguish events of one kind."""
_NEAR, _NEAR_S = 64, 60.0
"""How far apart two reports of one event may be: in events of its kind, and in seconds."""


class SpanRows:
    """The events and edges of one rollout: the recorded ones and those to write."""

    def __init__(self, rollout_id: str, events: Iterable[EventRow], edges: Iterable[EdgeRow]) -> None:
        self.rollout_id = rollout_id
        self.events: list[EventRow] = []
        """Events to write."""
        self.edges: list[EdgeRow] = []
        self._there = {event.id: event for event in events}
        self._seen: dict[str, list[EventRow]] = {}
        self._of_tool: dict[tuple[str, str], list[EventRow]] = {}
        for event in sorted(self._there.values(), key=lambda event: event.t):
            if event.source != SOURCE:
                self._seen.setdefault(event.kind, []).append(event)
                self._of_tool.setdefault((event.kind, str(event.attributes.get("tool_call_id"))), []).append(
                    event
                )
        self._drawn = {(edge.kind, edge.source_event_id, edge.target_event_id) for edge in edges}
        self._used: set[str] = set()
        """Ids of the proxy's events that a span has been matched to."""
        self._ours = {event.id for event in self._there.values() if event.source == SOURCE}
        self._tool_calls = {
            named: event.id for event in self._there.values() if (named := _tool_call_of(event))
        }

    def event(
        self,
        report: SpanReport,
        kind: str,
        t: float,
        attributes: Mapping[str, Any],
        *,
        agent: str | None = None,
        target: str | None = None,
        call_id: str | None = None,
        evidence: str = "",
        confidence: float | None = None,
        part: str = "",
    ) -> str:
        """Find or add the event that a span reports. Returns its id."""
        filled_attributes = {name: value for name, value in attributes.items() if value not in ("", None)}
        wanted = EventRow(
            self.rollout_id,
            kind,
            filled_attributes,
            t,
            call_id,
            agent,
            evidence or report.evidence,
            report.confidence if confidence is None else confidence,
            row_id(t, self.rollout_id, report.trace_id, report.span_id, kind, part),
            target,
            SOURCE,
            report.span_id,
        )
        twin = self._twin(wanted)
        if twin is not None:
            self._use(twin)
            return twin.id
        if wanted.id not in self._there:
            self._there[wanted.id] = wanted
            self._ours.add(wanted.id)
            self._tool_calls.setdefault(_tool_call_of(wanted), wanted.id)
            self.events.append(wanted)
        return wanted.id

    def edge(
        self,
        kind: EdgeKind,
        source: str | None,
        target: str | None,
        evidence: str,
        confidence: float | None = None,
    ) -> None:
        """Add an edge, unless an end is missing or the edge exists.

        Edges between two events that the proxy recorded are left to the proxy.
        """
        if source is None or target is None or source == target or (kind, source, target) in self._drawn:
            return
        if source in self._ours or target in self._ours:
            self._drawn.add((kind, source, target))
            made = EdgeRow(self.rollout_id, kind, source, target, evidence, confidence)
            t = self._there[source].t if source in self._there else 0.0
            self.edges.append(replace(made, id=row_id(t, self.rollout_id, kind, source, target)))

    def tool_call(self, tool_call_id: str) -> str | None:
        """The id of a tool call's event; None if there is none."""
        return self._tool_calls.get(tool_call_id) if tool_call_id else None

    def _twin(self, wanted: EventRow) -> EventRow | None:
        """The proxy's event that is the same as `wanted`; None if there is none.

        It is matched by tool call id, else by agent, target and attributes, taking the nearest in time.
        """
        named = wanted.attributes.get("tool_call_id")
        if named:
            exact = next(
                (
                    event
                    for event in self._of_tool.get((wanted.kind, named), ())
                    if event.id not in self._used
                ),
                None,
            )
            # With a call id and a tool call id the match is exact or there is none: do not guess by time.
            if exact is not None or (
                wanted.kind in ("tool_call", "tool_result") and wanted.call_id is not None
            ):
                return exact
        seen = self._seen.get(wanted.kind, [])
        at = bisect_left(seen, wanted.t, key=lambda event: event.t)
        near = [
            event for event in seen[max(0, at - _NEAR) : at + _NEAR] if abs(event.t - wanted.t) <= _NEAR_S
        ]
        return min(
            (event for event in near if _alike(event, wanted)),
            key=lambda event: abs(event.t - wanted.t),
            default=None,
        )

    def _use(self, twin: EventRow) -> None:
        """Mark an event as matched, so that no other span is matched to it."""
        self._used.add(twin.id)
        seen = self._seen[twin.kind]
        # Several events may have the same time, so the bisection only finds the first of them.
        at = bisect_left(seen, twin.t, key=lambda event: event.t)
        while seen[at].id != twin.id:
            at += 1
        del seen[at]


def _alike(seen: EventRow, wanted: EventRow) -> bool:
    """Whether two events can be the same.

    Their agents and targets must not differ where both are known, and at least one of the two must be known
    and equal in both.
    """
    pairs = ((seen.agent_id, wanted.agent_id), (seen.target_agent_id, wanted.target_agent_id))
    if any(one and other and one != other for one, other in pairs) or not any(
        one and one == other for one, other in pairs
    ):
        return False
    return all(
        seen.attributes.get(name) == wanted.attributes.get(name)
        for name in _TELLING
        if seen.attributes.get(name) and wanted.attributes.get(name)
    )


def _tool_call_of(event: EventRow) -> str:
    return str(event.attributes.get("tool_call_id") or "") if event.kind == "tool_call" else ""


def row_id(t: float, *parts: str) -> str:
    """A deterministic id in the format of `new_id`, derived from a time and the parts."""
    return f"{int(t * 1e6):014x}{hashlib.blake2b('/'.join(parts).encode(), digest_size=5).hexdigest()}"
