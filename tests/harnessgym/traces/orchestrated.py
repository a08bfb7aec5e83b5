"""A session played by hand to the state machine of orchestration, and what it wrote, checked as a whole."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from harnessgym.message import Message, ToolCall
from harnessgym.store.edges import EdgeRow
from harnessgym.store.events import EventRow
from harnessgym.traces.orchestration.memory import Recorded, recall
from harnessgym.traces.orchestration.rows import OrchestrationRows
from harnessgym.traces.orchestration.tracker import AgentRequest, SessionOrchestration


def user(text: str) -> Message:
    return Message("user", text)


def use(call_id: str, name: str, arguments: str = "{}") -> ToolCall:
    return ToolCall(call_id, name, arguments)


def result(call_id: str | None, text: str = "done", name: str | None = None) -> Message:
    return Message("tool", text, tool_call_id=call_id, name=name)


@dataclass
class Play:
    """One session."""

    machine: SessionOrchestration = field(default_factory=lambda: SessionOrchestration("rollout"))
    events: list[EventRow] = field(default_factory=list)
    edges: list[EdgeRow] = field(default_factory=list)
    calls: dict[str, Recorded] = field(default_factory=dict)
    t: float = 100.0
    restarts: bool = False
    """Whether the state is built again before every step."""

    def ask(self, agent: str | None, *new: Message, parent: str | None = None, **fields: Any) -> str:
        """A request; its call."""
        self._restart()
        call, self.t = f"call{len(self.calls)}", self.t + 1
        fresh = agent is not None and all(known.agent_id != agent for known in self.calls.values())
        asked = AgentRequest(
            call, self.t, agent_id=agent, parent_agent_id=parent, new=new, **{"fresh": fresh, **fields}
        )
        self._keep(self.machine.request(asked))
        self.calls[call] = Recorded(call, agent, asked.kind, parent)
        return call

    def say(self, call: str, text: str = "", *uses: ToolCall, finish_reason: str = "stop") -> None:
        """Its answer."""
        self._restart()
        self.t += 1
        answer = Message("assistant", text, tool_calls=uses)
        self._keep(self.machine.answer(call, self.t, answer, finish_reason))
        was = self.calls[call]
        self.calls[call] = Recorded(call, was.agent_id, was.kind, was.parent_agent_id, answer, finish_reason)

    def turn(
        self, agent: str | None, new: Sequence[Message], text: str = "", *uses: ToolCall, **fields: Any
    ) -> str:
        """A request and its answer; the call."""
        call = self.ask(agent, *new, **fields)
        self.say(call, text, *uses)
        return call

    def seal(self) -> None:
        self._restart()
        self.t += 1
        self._keep(self.machine.seal(self.t))

    def of(self, kind: str) -> list[EventRow]:
        """Events of a kind."""
        return [event for event in self.events if event.kind == kind]

    def one(self, kind: str) -> EventRow:
        (event,) = self.of(kind)
        return event

    def drawn(self, kind: str) -> list[tuple[str, str]]:
        """Edges of a kind, each end as its kind and its agent, or its call."""
        return [
            (self.name(edge.source_event_id), self.name(edge.target_event_id))
            for edge in self.edges
            if edge.kind == kind
        ]

    def name(self, event_id: str) -> str:
        event = next(event for event in self.events if event.id == event_id)
        return (
            event_id
            if event.kind == "llm_call"
            else f"{event.kind} {event.attributes.get('tool') or event.agent_id}"
        )

    def check(self) -> None:
        """What holds for every session."""
        by_id = {event.id: event for event in self.events}
        assert len(by_id) == len(self.events)
        for edge in self.edges:
            assert by_id[edge.source_event_id].t <= by_id[edge.target_event_id].t, edge
            assert (edge.evidence is None) or edge.confidence is None or 0 < edge.confidence < 1
        uses = Counter(
            edge.source_event_id for edge in self.edges if by_id[edge.target_event_id].kind == "tool_result"
        )
        assert all(count == 1 for count in uses.values())
        joined = Counter(
            edge.target_event_id
            for edge in self.edges
            if by_id[edge.source_event_id].kind == "tool_call" and edge.kind == "tool_dependency"
        )
        assert all(count == 1 for count in joined.values())
        spawned = Counter(event.target_agent_id for event in self.of("spawn"))
        returned = Counter(event.agent_id for event in self.of("return"))
        assert all(returned[agent] <= spawned[agent] for agent in returned)

    def _keep(self, rows: OrchestrationRows) -> None:
        self.events += rows.events
        self.edges += rows.edges

    def _restart(self) -> None:
        if self.restarts:
            happened = sorted(self.events, key=lambda event: event.t)
            self.machine = recall("rollout", happened, list(self.calls.values()))
