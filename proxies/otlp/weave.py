"""Derives events and edges from a rollout's spans and joins them with what the proxy recorded.

`weave` is pure and runs once all spans have arrived, so they may come in any order, before or after their
calls, and more than once. Agents, calls and their relations come from the tree of spans and from ids that the
proxy minted; failing that, from the order of time, with lower confidence.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from harnessgym.store.edges import EdgeKind, EdgeRow
from harnessgym.store.events import EventRow
from proxies.otlp.conventions import MomentReport, SpanReport, minted_by
from proxies.otlp.record import SpanRows
from proxies.otlp.tree import BY_ID, JoinedSpan, SeenCall, SpanTree

_PARENT = "span parent"
_LINK = "span link"
_TO_TARGET: dict[str, EdgeKind] = {"message": "message", "spawn": "spawn", "return": "return"}
"""Events that the target agent's next call reads, and the kind of edge to that call."""
_TO_ITSELF: dict[str, EdgeKind] = {
    "aggregate": "aggregate",
    "human_intervention": "causal",
    "safety_event": "causal",
    "tool_result": "tool_dependency",
}
"""Events that the acting agent's own next call reads, and the kind of edge to that call."""


def weave(
    rollout_id: str,
    reports: Iterable[SpanReport],
    calls: Sequence[SeenCall],
    agents: Sequence[tuple[str, str]],
    events: Iterable[EventRow],
    edges: Iterable[EdgeRow],
) -> tuple[list[EventRow], list[EdgeRow]]:
    """The events and edges to write in addition to `events` and `edges`.

    `agents` are (name, id) pairs. Edges refer to a model call by the call's id.
    """
    tree = SpanTree(reports, calls, agents)
    weaver = _Weaver(tree, SpanRows(rollout_id, events, edges))
    # Links may point to a span that starts later, and returns can only be counted at the end: both need
    # the events of all spans.
    for report in tree.reports:
        if not tree.repeats(report):
            weaver.add(report)
    for report in tree.reports:
        weaver.follow(report)
    weaver.gather()
    return weaver.record.events, weaver.record.edges


class _Weaver:
    """Turns spans into events and edges, in order of their start: a parent comes before its children."""

    def __init__(self, tree: SpanTree, record: SpanRows) -> None:
        self.tree = tree
        self.record = record
        self._event_of: dict[str, str] = {}
        """Maps a span's id to the id of its first event; for a model call, to the call's id."""
        self._returns: dict[str, list[tuple[str, SpanReport]]] = {}
        """Maps a call's id to the returns that the call reads, each with the agent's span."""

    def add(self, report: SpanReport) -> None:
        """Add the events of one span and the edges that follow from its place in the tree."""
        deeds = {
            "llm": self._model_call,
            "tool": self._tool,
            "agent": self._agent,
            "handoff": self._handoff,
            "guardrail": self._guardrail,
        }
        if report.deed in deeds:
            deeds[report.deed](report)
        elif report.deed not in ("step", "create_agent"):
            moment = MomentReport(
                report.deed, report.start, dict(report.attributes), report.evidence, report.confidence
            )
            self._event_of[report.span_id] = self._named(report, moment, "")
        for number, moment in enumerate(report.moments):
            self._named(report, moment, str(number))

    def follow(self, report: SpanReport) -> None:
        """Add the edges that follow from a span's links."""
        for link in report.links:
            self.record.edge("causal", self._event_of.get(link), self._event_of.get(report.span_id), _LINK)

    def gather(self) -> None:
        """Add an aggregate event to each call that reads several returns."""
        for call_id, returns in self._returns.items():
            if len(returns) < 2:
                continue
            call, (_, first) = self.tree.calls[call_id], returns[0]
            attributes = {"returns": len(returns)}
            gathered = self.record.event(
                first,
                "aggregate",
                call.start,
                attributes,
                agent=call.agent_id,
                call_id=call_id,
                evidence=_PARENT,
                part=call_id,
            )
            for returned, _ in returns:
                self.record.edge("aggregate", returned, gathered, _PARENT)
            self.record.edge("aggregate", gathered, call_id, _PARENT)

    def _model_call(self, report: SpanReport) -> None:
        """A model call adds no event: the proxy recorded it."""
        joined = self.tree.call(report)
        if joined is not None:
            self._event_of[report.span_id] = joined.call.id

    def _tool(self, report: SpanReport) -> None:
        joined = self.tree.call(report)
        who = self.tree.agent_id(report)
        call_id = None if joined is None else joined.call.id
        named = {"tool": report.tool, "tool_call_id": report.tool_call_id}
        whose: dict[str, Any] = {"agent": who, "call_id": call_id}
        called = self.record.event(
            report, "tool_call", report.start, named | {"arguments": report.given}, **whose
        )
        got = self.record.event(
            report, "tool_result", report.end, named | {"bytes": report.got_bytes}, **whose
        )
        self._event_of[report.span_id] = called
        self._draw("causal", joined or self.tree.last_before(who, report.start), called)
        self.record.edge("tool_dependency", called, got, _PARENT)
        after = self.tree.first_after(who, report.end)
        self._draw("tool_dependency", got, after)
        if report.refused is not None:
            attributes = named | {"verdict": "refused", "reason": report.error}
            sure = None if report.refused == 1.0 else report.refused
            refused = self.record.event(
                report, "safety_event", report.end, attributes, confidence=sure, **whose
            )
            self.record.edge("safety_flow", refused, called, _PARENT)
            self._draw("causal", refused, after)

    def _agent(self, report: SpanReport) -> None:
        """Add the spawn, task, result and return, or failure, of an agent that another agent started.

        The root agent has none of these: nothing started it.
        """
        above = self.tree.agent_around(report)
        tool = self.tree.tool_around(report)
        if above is None and tool is None:
            return
        me = self.tree.agent_id(report)
        starter = self.tree.agent_id(tool or above or report)
        calls = self.tree.inside(report)
        first, last = (calls[0], calls[-1]) if calls else (None, None)
        attributes: dict[str, Any] = {"agent": report.agent}
        if tool is not None:
            attributes |= {"tool": tool.tool, "tool_call_id": tool.tool_call_id}
        # A sub-agent started by a tool call comes from that call's event, else from the starter's last call.
        # The starter's first call after the end is the one that reads the result.
        origin = (
            self._event_of.get(tool.span_id)
            if tool is not None
            else self.tree.last_before(starter, report.start)
        )
        reader = None if starter is None else self.tree.first_after(starter, report.end)
        there: dict[str, Any] = {"agent": starter, "target": me}
        back: dict[str, Any] = {"agent": me, "target": starter}
        spawn = self._event_of[report.span_id] = self.record.event(
            report, "spawn", report.start, attributes, **there
        )
        self._draw("causal", origin, spawn)
        self._draw("spawn", spawn, first)
        if report.given:
            task = self.record.event(
                report, "message", report.start, {"channel": "task", "text": report.given}, **there
            )
            self._draw("causal", origin, task)
            self._draw("message", task, first)
        if report.error is not None:
            gone = self.record.event(
                report, "despawn", report.end, {"agent": report.agent, "reason": report.error}, **back
            )
            self._draw("causal", last, gone)
            self._draw("causal", gone, reader)
            return
        returned = self.record.event(report, "return", report.end, attributes, **back)
        self._draw("return", last, returned)
        self._draw("return", returned, reader)
        if reader is not None:
            self._returns.setdefault(reader.call.id, []).append((returned, report))
        if report.got:
            attributes = {"channel": "result", "text": report.got}
            result = self.record.event(report, "message", report.end, attributes, part="result", **back)
            self._draw("causal", last, result)
            self._draw("message", result, reader)

    def _handoff(self, report: SpanReport) -> None:
        who = self.tree.agent_id(report)
        to = self.tree.named(report.target)
        attributes = {"decision": "handoff", "to": report.target}
        before = self.tree.call(report) or self.tree.last_before(who, report.start)
        decision = self.record.event(
            report, "orchestrator_decision", report.start, attributes, agent=who, target=to
        )
        attributes = {"channel": "handoff", "to": report.target}
        message = self.record.event(report, "message", report.end, attributes, agent=who, target=to)
        self._event_of[report.span_id] = decision
        self._draw("causal", before, decision)
        self.record.edge("causal", decision, message, _PARENT)
        if to is not None:
            self._draw("message", message, self.tree.first_after(to, report.end))

    def _guardrail(self, report: SpanReport) -> None:
        """Add a safety event: a check of a tool call, of an agent's input or of its output."""
        who = self.tree.agent_id(report)
        tool = self.tree.tool_around(report)
        attributes = {
            "guardrail": report.tool or report.name,
            "verdict": "passed" if report.refused is None else "refused",
        }
        attributes |= {} if tool is None else {"tool": tool.tool, "tool_call_id": tool.tool_call_id}
        event = self._event_of[report.span_id] = self.record.event(
            report, "safety_event", report.end, attributes, agent=who
        )
        before, after = self.tree.last_before(who, report.start), self.tree.first_after(who, report.end)
        if tool is not None:
            self.record.edge("safety_flow", event, self._event_of.get(tool.span_id), _PARENT)
        elif after is not None:
            self._draw("safety_flow", event, after)
        self._draw("causal", before, event)

    def _named(self, report: SpanReport, moment: MomentReport, part: str) -> str:
        """Add an event that names its own kind. Returns its id."""
        kind = moment.kind
        attributes = dict(moment.attributes)
        tool_call_id = str(attributes.get("tool_call_id") or report.tool_call_id)
        asked = self.tree.named_call(minted_by(tool_call_id) or report.call_id)
        who = self.tree.named(str(attributes.get("agent", ""))) or (
            asked.call.agent_id if asked else self.tree.agent_id(report)
        )
        to = self.tree.named(str(attributes.get("to", "")))
        if kind == "message":
            attributes.setdefault("channel", "peer")
        if report.tool_call_id:
            attributes = {"tool": report.tool, "tool_call_id": report.tool_call_id, **attributes}
        event = self.record.event(
            report,
            kind,
            moment.t,
            attributes,
            agent=who,
            target=to,
            call_id=None if asked is None else asked.call.id,
            evidence=moment.evidence,
            confidence=moment.confidence,
            part=part,
        )
        around = report if report.deed == "tool" else self.tree.tool_around(report)
        tool = self.record.tool_call(tool_call_id) or self._event_of.get(
            "" if around is None else around.span_id
        )
        self._before(kind, event, tool, asked or self.tree.last_before(who, moment.t))
        self._after(kind, event, who, to, moment.t)
        return event

    def _before(self, kind: str, event: str, tool: str | None, call: JoinedSpan | None) -> None:
        """Add the edge from an event's cause: its tool call if it has one, else the agent's last call."""
        if kind == "safety_event" and tool is not None:
            self.record.edge("safety_flow", event, tool, BY_ID)
        elif kind == "tool_result" and tool is not None:
            self.record.edge("tool_dependency", tool, event, BY_ID)
        elif tool is not None and kind != "return":
            self.record.edge("causal", tool, event, BY_ID)
        else:
            self._draw("return" if kind == "return" else "causal", call, event)

    def _after(self, kind: str, event: str, who: str | None, to: str | None, t: float) -> None:
        """Add the edge to the call that reads the event."""
        if kind in _TO_TARGET:
            self._draw(_TO_TARGET[kind], event, None if to is None else self.tree.first_after(to, t))
        elif kind in _TO_ITSELF:
            self._draw(_TO_ITSELF[kind], event, self.tree.first_after(who, t))

    def _draw(
        self, kind: EdgeKind, source: "str | JoinedSpan | None", target: "str | JoinedSpan | None"
    ) -> None:
        """Add an edge with a call at one end. The match of the call gives its evidence and confidence."""
        joined = next(
            (end for end in (source, target) if isinstance(end, JoinedSpan)), JoinedSpan(_NO_CALL, _PARENT)
        )
        ends = [end.call.id if isinstance(end, JoinedSpan) else end for end in (source, target)]
        self.record.edge(kind, ends[0], ends[1], joined.evidence, joined.confidence)


_NO_CALL = SeenCall("", None, 0.0, 0.0)
