"""Events and edges of one step of a rollout, before they are written."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from harnessgym.store.edges import EdgeKind, EdgeRow
from harnessgym.store.events import EventRow
from harnessgym.store.tables import new_id


@dataclass(frozen=True, slots=True)
class EdgeEvidence:
    """The evidence for an event or edge."""

    text: str | None = None
    confidence: float | None = None
    """0 to 1. None: observed, not inferred."""


OBSERVED = EdgeEvidence()


def _numbered() -> Iterator[str]:
    """Yield new ids in order.

    Ids of one step share their random part, because generating it costs more than the rest of a row.
    """
    while True:
        common = new_id()[:21]
        for number in range(1 << 12):
            yield f"{common}{number:03x}"


@dataclass(slots=True)
class OrchestrationRows:
    """Rows to write. Events must be written before edges."""

    rollout_id: str
    t: float
    """Default time of events, in Unix seconds."""
    events: list[EventRow] = field(default_factory=list)
    edges: list[EdgeRow] = field(default_factory=list)
    _ids: Iterator[str] = field(default_factory=_numbered)

    def event(
        self,
        kind: str,
        agent_id: str | None,
        call_id: str | None,
        attributes: dict[str, Any],
        why: EdgeEvidence = OBSERVED,
        *,
        target: str | None = None,
        t: float | None = None,
    ) -> str:
        """Add an event. Returns its id."""
        row = EventRow(
            self.rollout_id,
            kind,
            attributes,
            self.t if t is None else t,
            call_id,
            agent_id,
            why.text,
            why.confidence,
            next(self._ids),
            target,
        )
        self.events.append(row)
        return row.id

    def call(self, call_id: str, agent_id: str | None, attributes: dict[str, Any]) -> None:
        """Add the event of a model call, which has the call's id."""
        self.events.append(
            EventRow(self.rollout_id, "llm_call", attributes, self.t, call_id, agent_id, None, None, call_id)
        )

    def edge(self, kind: EdgeKind, source: str, target: str, why: EdgeEvidence = OBSERVED) -> None:
        """Add an edge."""
        self.edges.append(
            EdgeRow(self.rollout_id, kind, source, target, why.text, why.confidence, next(self._ids))
        )
