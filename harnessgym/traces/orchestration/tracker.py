"""Derives the orchestration of agents from the proxy's traffic: spawns, tool calls, returns, handoffs, stops.

The tracker is a state machine for one session. It takes what each request adds and each committed answer, and
returns the events and edges to write with them. So the cost of a turn depends only on what the turn adds.
What the traffic does not say explicitly is inferred, with evidence and confidence. The state follows from the
returned events and the answers, so `orchestration.memory` can rebuild it from the store.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from harnessgym.message import Message
from harnessgym.store.edges import EdgeRow
from harnessgym.traces.orchestration.agents import Agent, Members, Reply, came_back, shared
from harnessgym.traces.orchestration.rows import OBSERVED, EdgeEvidence, OrchestrationRows
from harnessgym.traces.orchestration.tools import MatchedResult, OpenCall, ToolCalls

_TEXT = 500
"""Maximum characters of a message that an event keeps. Arguments are kept whole: contracts check them."""

_TICK_S = 1e-6
"""Minimum time between the events of two requests."""


@dataclass(frozen=True, slots=True)
class AgentRequest:
    """A request and its agent."""

    call_id: str
    t: float
    """Unix seconds."""
    kind: str = "policy"
    side_call: str | None = None
    agent_id: str | None = None
    """None for calls that belong to no agent, such as side calls."""
    parent_agent_id: str | None = None
    """The agent that started this one, if known."""
    fresh: bool = False
    """Whether it is the agent's first request."""
    harness_names_agents: bool = False
    """Whether the harness itself names its agents."""
    new: tuple[Message, ...] = ()
    """Messages that are not in earlier requests and their answers."""
    parent_call: str | None = None
    """The call that it continues."""
    again: bool = False
    """Whether the agent repeats its last request: as a sibling, or after a failure."""
    siblings: int = 1
    """Number of answers requested."""

    @property
    def recent(self) -> tuple[Message, ...]:
        """The new messages after the last answer among them."""
        for at in range(len(self.new) - 1, -1, -1):
            if self.new[at].role == "assistant":
                return self.new[at + 1 :]
        return self.new


@dataclass(frozen=True, slots=True)
class _Return:
    """An agent's answer that reached the agent that started it."""

    child: Agent
    reply: Reply
    why: EdgeEvidence
    joined: MatchedResult | None


@dataclass(frozen=True, slots=True)
class _Handoff:
    """An agent's answer that another agent continues."""

    agent_id: str
    call_id: str
    t: float
    text: str
    why: EdgeEvidence
    call: OpenCall | None = None


@dataclass(frozen=True, slots=True)
class Begun:
    """A request without an answer."""

    agent_id: str
    sibling: bool


@dataclass
class SessionOrchestration:
    """The orchestration state of one session."""

    rollout_id: str
    tools: ToolCalls = field(default_factory=ToolCalls)
    members: Members = field(default_factory=Members)
    begun: dict[str, Begun] = field(default_factory=dict)
    """The policy's calls that have no answer yet."""
    held: dict[str, tuple[str, Reply]] = field(default_factory=dict)
    """Sibling answers with tool calls and their agents, by call, until a request continues one of them."""
    decisions: dict[str, str] = field(default_factory=dict)
    """Maps a call to the event of its decision."""
    now: float = 0.0
    """The latest time so far, in Unix seconds. It never goes back, whatever the clock does."""

    def request(self, asked: AgentRequest) -> OrchestrationRows:
        """Record the request that begins a call. Returns the rows to write with it."""
        rows = self._rows(asked.t)
        attributes: dict[str, Any] = {"kind": asked.kind}
        if asked.side_call is not None:
            attributes["side_call"] = asked.side_call
        if asked.siblings > 1:
            attributes["siblings"] = asked.siblings
        rows.call(asked.call_id, asked.agent_id, attributes)
        if asked.agent_id is None:
            return rows
        me = self.members.get(asked.agent_id)
        if me.parent is None:
            me.parent = asked.parent_agent_id
        if self.held:
            self._go_on(rows, asked)
        # A repeated request must not create its spawns and returns a second time. It only gets edges from the
        # same events as the first.
        if asked.again:
            rows.edges += [
                EdgeRow(
                    self.rollout_id,
                    edge.kind,
                    edge.source_event_id,
                    asked.call_id,
                    edge.evidence,
                    edge.confidence,
                )
                for edge in me.reads
            ]
        else:
            self._react(rows, asked, me)
            me.reads = [edge for edge in rows.edges if edge.target_event_id == asked.call_id]
        if asked.kind == "policy":
            me.last_call = asked.call_id
            self.begun[asked.call_id] = Begun(me.id, asked.siblings > 1)
        return rows

    def answer(self, call_id: str, t: float, message: Message, finish_reason: str) -> OrchestrationRows:
        """Record the answer of a call that is about to be committed. Returns the rows to write with it."""
        rows = self._rows(t)
        begun = self.begun.pop(call_id, None)
        if begun is None:
            return rows
        reply = Reply(call_id, rows.t, message, finish_reason, begun.sibling)
        self.members.get(begun.agent_id).last_reply = reply
        # The harness acts on one of several sibling answers. Only a later request shows which one, so their
        # tool calls are held back until then.
        if not reply.sibling:
            self._act(rows, begun.agent_id, reply)
        elif reply.acts:
            self.held[call_id] = begun.agent_id, reply
        return rows

    def failed(self, call_id: str) -> None:
        """Record that a call ended without an answer that the harness could act on."""
        self.begun.pop(call_id, None)

    def seal(self, t: float) -> OrchestrationRows:
        """End the session: the leading agent decided to stop, and all agents despawn."""
        rows = self._rows(t)
        leader = self.members.leader()
        if leader is not None and leader.last_reply is not None:
            reply = leader.last_reply
            if not reply.acts and not reply.sibling and reply.finish_reason == "stop":
                self._decide(rows, "stop", leader.id, reply.call_id, reply.t)
        for member in self.members.by_id.values():
            if not member.ended and member.last_call is not None:
                member.ended = True
                gone = rows.event("despawn", member.id, None, {})
                rows.edge("causal", self.decisions.get(member.last_call, member.last_call), gone)
        return rows

    def expects(self, beginning: Sequence[Message]) -> str | None:
        """Return the agent whose tool call starts an agent with these first messages; None if none does."""
        heard = _heard(beginning)
        calls = [call for call in self.tools.unclaimed() if call.starts]
        return next(
            (call.agent_id for call in calls if heard and shared(call.texts, heard, named=True)), None
        )

    def _rows(self, t: float) -> OrchestrationRows:
        # Events are read back in order of time. So two requests never share a time, even if the clock was set
        # back.
        self.now = max(self.now + _TICK_S, t)
        return OrchestrationRows(self.rollout_id, self.now)

    def _react(self, rows: OrchestrationRows, asked: AgentRequest, me: Agent) -> None:
        """Add what follows from the new messages of a request."""
        # Results first: a result for another agent's call is the evidence of a handoff. Handoff before spawn:
        # an agent that takes over was not started.
        joined = self._results(rows, asked, me)
        handed = self._hands_over(asked, me, joined)
        if handed is not None:
            self._hand_over(rows, asked, me, handed)
        elif asked.fresh and asked.kind == "policy":
            self._spawn(rows, asked, me)
        elif me.spawned and not me.open:
            self._resume(rows, asked, me)
        if me.children:
            self._returns(rows, asked, me, joined)

    def _results(self, rows: OrchestrationRows, asked: AgentRequest, me: Agent) -> list[MatchedResult]:
        recent = asked.recent
        results = [message for message in recent if message.role == "tool"]
        before = asked.new[: len(asked.new) - len(recent)]
        old = [message for message in before if message.role == "tool"]
        if not results and not old:
            return []
        joined = self.tools.join(me.id, old, results, harness_names_agents=asked.harness_names_agents)
        for item in joined:
            call = item.call
            message = item.message
            attributes: dict[str, Any] = {
                "tool_call_id": message.tool_call_id if call is None else call.call.id,
                "tool": message.name if call is None else call.call.name,
                "bytes": len(message.content.encode(errors="surrogatepass")),
                "content_hash": message.digest,
            }
            if message.is_error:
                attributes["is_error"] = True
            if item.why is not OBSERVED:
                attributes["given_id"] = message.tool_call_id
            result = rows.event("tool_result", me.id, asked.call_id, attributes, item.why)
            if call is not None:
                rows.edge("tool_dependency", call.event_id, result, item.why)
            rows.edge("tool_dependency", result, asked.call_id)
        return joined

    def _hands_over(self, asked: AgentRequest, me: Agent, joined: Sequence[MatchedResult]) -> _Handoff | None:
        """Return the handoff if the request continues another agent's history; else None."""
        if asked.harness_names_agents:
            return None
        for item in joined:
            if (call := item.call) is not None and call.agent_id != me.id:
                text = call.texts[0] if call.texts else call.call.name
                return _Handoff(
                    call.agent_id, call.call_id, call.t, text, EdgeEvidence("result of its call", 0.95), call
                )
        last = next((message for message in reversed(asked.new) if message.role == "assistant"), None)
        if not asked.fresh or last is None:
            return None
        for other in self.members.by_id.values():
            if other is not me and (reply := other.last_reply) is not None and reply.is_in(last):
                return _Handoff(
                    other.id, reply.call_id, reply.t, reply.message.content, EdgeEvidence("history", 0.9)
                )
        return None

    def _hand_over(self, rows: OrchestrationRows, asked: AgentRequest, me: Agent, handoff: _Handoff) -> None:
        decision = self._decide(
            rows, "handoff", handoff.agent_id, handoff.call_id, handoff.t, target=me.id, why=handoff.why
        )
        text = {"channel": "handoff", "text": handoff.text[:_TEXT]}
        message = rows.event("message", handoff.agent_id, asked.call_id, text, handoff.why, target=me.id)
        rows.edge("causal", decision, message, handoff.why)
        rows.edge("message", message, asked.call_id, handoff.why)
        self.members.hand_over(handoff.agent_id, me.id)
        if handoff.call is not None:
            self.tools.hand_over(handoff.call_id, me.id)

    def _spawn(self, rows: OrchestrationRows, asked: AgentRequest, me: Agent) -> None:
        call, why = self._starter(asked, me)
        parent = asked.parent_agent_id if call is None else call.agent_id
        if call is not None:
            self._start(rows, asked, me, call, why)
        elif asked.harness_names_agents and parent is not None:
            spawn = rows.event("spawn", parent, asked.call_id, {}, EdgeEvidence("header"), target=me.id)
            rows.edge("spawn", spawn, asked.call_id)
            self.members.start(me.id, parent, None)

    def _resume(self, rows: OrchestrationRows, asked: AgentRequest, me: Agent) -> None:
        """Start an agent again that had returned, if a tool call asks it to continue."""
        heard = _heard(asked.recent)
        calls = [call for call in self.tools.unclaimed() if call.agent_id == me.parent]
        call = next((call for call in calls if heard and shared(call.texts, heard, named=call.starts)), None)
        if call is not None:
            self._start(rows, asked, me, call, EdgeEvidence("arguments", 0.95), resumed=True)

    def _start(
        self,
        rows: OrchestrationRows,
        asked: AgentRequest,
        me: Agent,
        call: OpenCall,
        why: EdgeEvidence,
        *,
        resumed: bool = False,
    ) -> None:
        parent = call.agent_id
        attributes = {"tool": call.call.name, "tool_call_id": call.call.id}
        spawn = rows.event(
            "spawn",
            parent,
            asked.call_id,
            attributes | ({"resumed": True} if resumed else {}),
            why,
            target=me.id,
        )
        text = {"channel": "task", "text": (call.texts or [""])[0][:_TEXT]}
        message = rows.event("message", parent, asked.call_id, text, why, target=me.id)
        rows.edge("causal", self._decide(rows, "delegate", parent, call.call_id, call.t, why=why), spawn, why)
        rows.edge("causal", call.event_id, spawn, why)
        rows.edge("causal", call.event_id, message, why)
        rows.edge("spawn", spawn, asked.call_id, why)
        rows.edge("message", message, asked.call_id, why)
        self.tools.claim(call.call.id, me.id)
        self.members.start(me.id, parent, call.call.id)

    def _starter(self, asked: AgentRequest, me: Agent) -> tuple[OpenCall | None, EdgeEvidence]:
        """Return the tool call that started an agent, if one can be inferred, and the evidence."""
        # From the strongest evidence to the weakest: shared text, then the only call that starts agents, then
        # the order of several, then the only call at all.
        parent = asked.parent_agent_id
        by_header = asked.harness_names_agents and asked.parent_agent_id is not None
        heard = _heard(asked.new)
        calls = [call for call in self.tools.unclaimed() if call.agent_id != me.id]
        own = [call for call in calls if parent is None or call.agent_id == parent]
        for among in (own,) if by_header else (own, calls):
            most = max(among, key=lambda call: shared(call.texts, heard, named=call.starts), default=None)
            if most is not None and heard and shared(most.texts, heard, named=most.starts):
                return most, EdgeEvidence("header, arguments", 0.99) if by_header else EdgeEvidence(
                    "arguments", 0.95
                )
        starting = [call for call in own if call.starts]
        if len(starting) == 1:
            return starting[0], EdgeEvidence("header, only spawn call", 0.9) if by_header else EdgeEvidence(
                "only spawn call", 0.7
            )
        if starting:
            return starting[0], EdgeEvidence("order", 0.3)
        if len(own) == 1:
            return own[0], EdgeEvidence("header, only call", 0.6) if by_header else EdgeEvidence(
                "only call", 0.5
            )
        return None, OBSERVED

    def _returns(
        self, rows: OrchestrationRows, asked: AgentRequest, me: Agent, joined: Sequence[MatchedResult]
    ) -> None:
        others = [message.content for message in asked.recent if message.role in ("tool", "user")]
        returns = [
            back
            for child in me.children
            if (back := self._back(self.members.get(child), joined, others)) is not None
        ]
        events = []
        for back in returns:
            child = back.child
            reply = back.reply
            why = back.why
            call = None if back.joined is None else back.joined.call
            named = (
                {"tool_call_id": child.tool_call_id}
                if call is None
                else {"tool": call.call.name, "tool_call_id": call.call.id}
            )
            event = rows.event("return", child.id, asked.call_id, named, why, target=me.id)
            rows.edge("return", reply.call_id, event, why)
            rows.edge("return", event, asked.call_id)
            text = {"channel": "result", "text": (reply.texts or [""])[0][:_TEXT]}
            message = rows.event("message", child.id, asked.call_id, text, why, target=me.id)
            rows.edge("causal", reply.call_id, message, why)
            rows.edge("message", message, asked.call_id)
            rows.edge("causal", event, rows.event("despawn", child.id, asked.call_id, {}, why))
            self.members.come_back(child.id)
            events.append(event)
        if len(events) >= 2:
            gathered = rows.event("aggregate", me.id, asked.call_id, {"returns": len(events)})
            for event in events:
                rows.edge("aggregate", event, gathered)
            rows.edge("aggregate", gathered, asked.call_id)

    def _back(self, child: Agent, joined: Sequence[MatchedResult], others: Sequence[str]) -> _Return | None:
        """Return how an agent's last answer came back; None if it did not."""
        reply = self.members.last(child.id).resting
        if reply is None:
            return None
        own = next((item for item in joined if item.call is not None and item.call.target == child.id), None)
        if own is not None and own.call is not None:
            if came_back(reply.texts, own.message.content):
                return _Return(child, reply, EdgeEvidence("result text", 0.95), own)
            if not reply.acts and not own.call.detaches:
                return _Return(child, reply, EdgeEvidence("time order", 0.7), own)
        if not reply.acts and any(came_back(reply.texts, text, far=True) for text in others):
            return _Return(child, reply, EdgeEvidence("result text", 0.95), None)
        return None

    def _act(self, rows: OrchestrationRows, agent_id: str, reply: Reply) -> None:
        """Add the tool calls of an answer."""
        for index, call in enumerate(reply.message.tool_calls):
            attributes = {
                "tool": call.name,
                "tool_call_id": call.id,
                "arguments": call.arguments,
                "index": index,
            }
            event = rows.event("tool_call", agent_id, reply.call_id, attributes, t=reply.t)
            rows.edge("causal", reply.call_id, event)
            self.tools.add(OpenCall(event, reply.call_id, agent_id, call, reply.t))

    def _go_on(self, rows: OrchestrationRows, asked: AgentRequest) -> None:
        """Add the tool calls of the sibling answers that a request continues."""
        named = "\n".join(message.tool_call_id or "" for message in asked.new)
        for call_id in [call_id for call_id in self.held if call_id == asked.parent_call or call_id in named]:
            self._act(rows, *self.held.pop(call_id))

    def _decide(
        self,
        rows: OrchestrationRows,
        decision: str,
        agent_id: str,
        call_id: str,
        t: float,
        *,
        target: str | None = None,
        why: EdgeEvidence = OBSERVED,
    ) -> str:
        """Return the event of a call's decision. Adds it if the call has none yet."""
        if call_id not in self.decisions:
            attributes = {"decision": decision}
            event = rows.event(
                "orchestrator_decision", agent_id, call_id, attributes, why, target=target, t=t
            )
            self.decisions[call_id] = event
            rows.edge("causal", call_id, event, why)
        return self.decisions[call_id]


def _heard(messages: Sequence[Message]) -> str:
    """Return the user messages that an agent gets before its first answer, as one text."""
    first_messages = itertools.takewhile(lambda message: message.role != "assistant", messages)
    return "\n".join(message.content for message in first_messages if message.role == "user")
