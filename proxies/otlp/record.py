"""What is added to a rollout's events and edges by its spans, next to what the proxy has recorded already.

An event that the traffic showed is not written again when a span tells of it: the span's edges then begin or
end at the event that is there. Ids follow from rollout, span and part, so the same spans always give the same
rows.
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
"""Attributes that tell events of one kind apart."""
_NEAR, _NEAR_S = 64, 60.0
"""Two tales of one event are not further apart: events of its kind in between, and seconds."""


class SpanRows:
    """Events and edges of one rollout: those that are there, and those that are to be written."""

    def __init__(self, rollout_id: str, events: Iterable[EventRow], edges: Iterable[EdgeRow]) -> None:
        self.rollout_id = rollout_id
        self.events: list[EventRow] = []
        """To be written."""
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
        """Events of the traffic that a span has told of."""
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
        """The event that a span tells of: one that is there, or a new one. Returns its id."""
        said = {name: value for name, value in attributes.items() if value not in ("", None)}
        wanted = EventRow(
            self.rollout_id,
            kind,
            said,
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
        """Draw an edge that has both ends. Between two events that the traffic showed, the traffic's own
        edges suffice.
        """
        if source is None or target is None or source == target or (kind, source, target) in self._drawn:
            return
        if source in self._ours or target in self._ours:
            self._drawn.add((kind, source, target))
            made = EdgeRow(self.rollout_id, kind, source, target, evidence, confidence)
            t = self._there[source].t if source in self._there else 0.0
            self.edges.append(replace(made, id=row_id(t, self.rollout_id, kind, source, target)))

    def tool_call(self, tool_call_id: str) -> str | None:
        """The event of a tool call."""
        return self._tool_calls.get(tool_call_id) if tool_call_id else None

    def _twin(self, wanted: EventRow) -> EventRow | None:
        """The event of the traffic that is the same: by its tool call, else by who, to whom and what,
        nearest in time.
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
        """An event is told of once."""
        self._used.add(twin.id)
        seen = self._seen[twin.kind]
        at = bisect_left(seen, twin.t, key=lambda event: event.t)
        while seen[at].id != twin.id:
            at += 1
        del seen[at]


def _alike(seen: EventRow, wanted: EventRow) -> bool:
    """Whether two events can be the same: who and to whom agree as far as both are known, and one of them
    is known of both.
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
    """An id like `new_id`'s that follows from what it stands for."""
    return f"{int(t * 1e6):014x}{hashlib.blake2b('/'.join(parts).encode(), digest_size=5).hexdigest()}"
