"""Tracks a session's agents live: requests and answers become events and edges, written along with the calls.

`lineage` attributes a request to an agent. Only agents with the same description that run side by side, such
as parallel workers, are distinguished here: by the tool call that started each.

`ContractWatch` checks a session's contracts while it runs: a call after a violation, or one that would
cause it, is refused. Only what the proxy sees is checked: the policy's calls and their tool calls.
Contracts about anything else are judged when the rollout is over.
"""

import copy
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sqlalchemy import Connection

from harnessgym.message import Message
from harnessgym.store import edges, events
from harnessgym.store.agents import AgentRow
from harnessgym.store.calls import CallIntent, RecordedCall
from harnessgym.store.events import EventRow
from harnessgym.store.tables import new_id
from harnessgym.traces.contracts import Contract, ContractMonitor, online
from harnessgym.traces.orchestration.memory import Recorded, recall
from harnessgym.traces.orchestration.rows import OrchestrationRows
from harnessgym.traces.orchestration.tracker import AgentRequest, SessionOrchestration
from harnessgym.traces.step import RolloutStep
from proxies.call import Call
from proxies.dialect import ModelRequest, Problem
from proxies.lineage import Lineages


def write(conn: Connection, rows: OrchestrationRows | None) -> None:
    """Write events and edges. Their calls and agents must be stored already."""
    if rows is None:
        return
    if rows.events:
        events.add_many(conn, rows.events)
    if rows.edges:
        edges.add_many(conn, rows.edges)


@dataclass
class OrchestrationTracker:
    """The orchestration of one session."""

    machine: SessionOrchestration
    _speakers: dict[str, str] = field(default_factory=dict)
    """Digests of conversation prefixes, those that end in an answer too, to the agent that had them last."""
    _last: dict[str, str] = field(default_factory=dict)
    """Agent to the digest of its last request."""
    _sealed: OrchestrationRows | None = None

    @classmethod
    def load(
        cls,
        rollout_id: str,
        stored_events: Sequence[EventRow],
        recorded: Sequence[RecordedCall],
        agents: Sequence[AgentRow],
        answers: Mapping[str, Message],
    ) -> "OrchestrationTracker":
        """Restore a tracker from a rollout's events and a session's calls, agents and answers by call id."""
        parents = {agent.id: agent.parent_agent_id for agent in agents}
        ours = {call.id for call in recorded}
        own = [
            event
            for event in stored_events
            if event.source == "proxy"
            and (event.agent_id in parents or (event.kind == "llm_call" and event.id in ours))
        ]
        calls = [
            Recorded(
                call.id,
                call.agent_id,
                call.kind,
                parents.get(call.agent_id or ""),
                None if call.status in ("aborted", "error") else answers.get(call.id),
                call.finish_reason or "",
            )
            for call in recorded
        ]
        tracker = cls(recall(rollout_id, own, calls))
        for call in recorded:
            if call.agent_id is not None:
                tracker._speakers[call.chain_digest] = call.agent_id
                tracker._last[call.agent_id] = call.chain_digest
                if call.answer_digest is not None:
                    tracker._speakers[call.answer_digest] = call.agent_id
        return tracker

    def attribute(
        self,
        lineages: Lineages,
        request: ModelRequest,
        parent_call: str | None,
        context: str,
        chain: Sequence[str],
    ) -> tuple[AgentRow, bool]:
        """The agent of a request, and whether it is new. `chain` has its messages' prefix digests."""
        agent, new = lineages.attribute(request, parent_call, context)
        if new or agent.evidence == "header" or parent_call in lineages.of_call:
            return agent, new
        # Parallel workers share system text and tools, so `lineage` sees one agent. A conversation that has
        # answers belongs to whoever gave them; one without is a new worker if a tool call expects it.
        alike = {other.id: other for other in lineages.agents.values() if other.key.startswith(agent.key)}
        if any(message.role == "assistant" for message in request.messages):
            at = self._known(chain)
            speaker = self._speakers[chain[at - 1]] if at > 1 else ""
            return alike.get(speaker, agent), False
        starter = self.machine.expects(request.messages)
        if starter is None:
            return agent, False
        key = f"{agent.key}/{len(alike)}"
        name = f"agent {len(lineages.agents)}"
        return AgentRow(new_id(), agent.rollout_id, agent.session_id, key, name, starter, "content"), True

    def asked(
        self, call: Call, intent: CallIntent, agent: AgentRow | None, chain: Sequence[str], *, fresh: bool
    ) -> OrchestrationRows:
        """Add a call that begins. `chain` is that of `attribute`."""
        t = _made_at(call.id)
        if agent is None:
            return self.machine.request(AgentRequest(call.id, t, intent.kind, intent.side_call))
        messages = call.request.messages
        parent = call.prompt.parent
        at = self._known(chain) if messages else 0
        again = at == len(messages) and self._last.get(agent.id) == chain[-1]
        for digest in chain[at:]:
            self._speakers[digest] = agent.id
        self._last[agent.id] = chain[-1]
        return self.machine.request(
            AgentRequest(
                call.id,
                t,
                intent.kind,
                intent.side_call,
                agent.id,
                parent_agent_id=agent.parent_agent_id,
                fresh=fresh,
                harness_names_agents=agent.evidence == "header",
                new=messages[at:],
                parent_call=None if parent is None else parent.call_id,
                again=again,
                siblings=call.request.n,
            )
        )

    def answered(
        self, call_id: str, agent_id: str | None, answer: Message, finish_reason: str, digest: str
    ) -> OrchestrationRows | None:
        """Add the answer of a call that is about to be committed. `digest` is that of its conversation with
        the answer.
        """
        if agent_id is None:
            return None
        self._speakers[digest] = agent_id
        return self.machine.answer(call_id, time.time(), answer, finish_reason)

    def failed(self, call_id: str) -> None:
        """Note that a call ends without an answer on which a client can act."""
        self.machine.failed(call_id)

    def sealed(self) -> OrchestrationRows:
        """The rows of the session's end. Repeated calls return the same rows."""
        if self._sealed is None:
            self._sealed = self.machine.seal(time.time())
        return self._sealed

    def _known(self, chain: Sequence[str]) -> int:
        """How many leading messages of a conversation were seen before."""
        at = len(chain)
        while at and chain[at - 1] not in self._speakers:
            at -= 1
        return at


def _made_at(call_id: str) -> float:
    """When a call began, in Unix seconds: ids begin with it."""
    return int(call_id[:14], 16) / 1e6


class ContractWatch:
    """The contracts of one session."""

    def __init__(self, contracts: Sequence[Contract]) -> None:
        judged = online(contracts)
        self._watch = ContractMonitor(judged)
        self._ahead = ContractMonitor(
            [contract for contract in judged if getattr(contract, "per", "rollout") == "rollout"]
        )
        """Without contracts per agent: the agent of a call is only known once the call exists."""
        self._idle = not judged

    def committed(self, call_id: str, agent_id: str | None, tokens: int, answer: Message) -> None:
        """Add the answer of an agent's call."""
        if self._idle:
            return
        t = _made_at(call_id)
        steps = [RolloutStep(call_id, "llm_call", t, agent_id, tokens=tokens)]
        steps += [
            RolloutStep(
                call_id,
                "tool_call",
                t,
                agent_id,
                tool=call.name,
                tool_call_id=call.id,
                arguments=call.arguments,
            )
            for call in answer.tool_calls
        ]
        for step in steps:
            self._watch.see(step)
            self._ahead.see(step)

    def refusal(self, in_flight: int, new: int) -> Problem | None:
        """Why `new` more calls, on top of those in flight, are refused; None if they are allowed."""
        if self._idle:
            return None
        violation = self._watch.violation
        ahead = self._ahead
        if violation is None:
            # Try the next calls on a copy: the real ones are added when they have their answers.
            ahead = copy.deepcopy(self._ahead)
            for _ in range(in_flight + new):
                ahead.see(RolloutStep("next", "llm_call", time.time(), tokens=1))
            violation = ahead.violation
        if violation is None:
            return None
        return Problem("limit", f"A contract of this session ends it. {violation}", limit="contract")
