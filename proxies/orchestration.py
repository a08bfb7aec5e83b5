"""What a session's traffic says of its agents, live: requests and answers become events and edges, written
along with them.

Whose a request is, is told by `lineage`; except that agents of one description which run beside each other,
as parallel workers do, are told apart here: by the tool call that started each.
"""

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
from harnessgym.traces.orchestration.memory import Recorded, recall
from harnessgym.traces.orchestration.rows import OrchestrationRows
from harnessgym.traces.orchestration.tracker import AgentRequest, SessionOrchestration
from proxies.call import Call
from proxies.dialect import ModelRequest
from proxies.lineage import Lineages


def write(conn: Connection, rows: OrchestrationRows | None) -> None:
    """Write what happened. The call that it is of, and its agent, are there."""
    if rows is None:
        return
    if rows.events:
        events.add_many(conn, rows.events)
    if rows.edges:
        edges.add_many(conn, rows.edges)


@dataclass
class OrchestrationTracker:
    """One session's."""

    machine: SessionOrchestration
    _speakers: dict[str, str] = field(default_factory=dict)
    """Digests of leading parts of conversations, up to answers too, to the agent that had them last."""
    _last: dict[str, str] = field(default_factory=dict)
    """Agent to the digest of what it asked last."""
    _sealed: OrchestrationRows | None = None

    @classmethod
    def load(
        cls,
        rollout_id: str,
        happened: Sequence[EventRow],
        recorded: Sequence[RecordedCall],
        agents: Sequence[AgentRow],
        answers: Mapping[str, Message],
    ) -> "OrchestrationTracker":
        """A session's traffic as the store has it: its rollout's events, its calls, its agents, its
        answers by call.
        """
        parents = {agent.id: agent.parent_agent_id for agent in agents}
        ours = {call.id for call in recorded}
        own = [
            event
            for event in happened
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
        traffic = cls(recall(rollout_id, own, calls))
        for call in recorded:
            if call.agent_id is not None:
                traffic._speakers[call.chain_digest] = call.agent_id
                traffic._last[call.agent_id] = call.chain_digest
                if call.answer_digest is not None:
                    traffic._speakers[call.answer_digest] = call.agent_id
        return traffic

    def attribute(
        self,
        lineages: Lineages,
        request: ModelRequest,
        parent_call: str | None,
        context: str,
        chain: Sequence[str],
    ) -> tuple[AgentRow, bool]:
        """The agent of a request, and whether it is new. `chain`: digests of the leading parts of its
        messages.
        """
        agent, new = lineages.attribute(request, parent_call, context)
        if new or agent.evidence == "header" or parent_call in lineages.of_call:
            return agent, new
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
        """A call begins. `chain` as in `attribute`."""
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
                told=agent.evidence == "header",
                new=messages[at:],
                parent_call=None if parent is None else parent.call_id,
                again=again,
                siblings=call.request.n,
            )
        )

    def answered(
        self, call_id: str, agent_id: str | None, answer: Message, finish_reason: str, digest: str
    ) -> OrchestrationRows | None:
        """A call is about to be committed. `digest`: of its conversation with the answer."""
        if agent_id is None:
            return None
        self._speakers[digest] = agent_id
        return self.machine.answer(call_id, time.time(), answer, finish_reason)

    def failed(self, call_id: str) -> None:
        """A call ends without an answer on which anybody could act."""
        self.machine.failed(call_id)

    def sealed(self) -> OrchestrationRows:
        """Nothing follows. The same whenever it is asked."""
        if self._sealed is None:
            self._sealed = self.machine.seal(time.time())
        return self._sealed

    def _known(self, chain: Sequence[str]) -> int:
        """How many leading messages of a conversation were there before."""
        at = len(chain)
        while at and chain[at - 1] not in self._speakers:
            at -= 1
        return at


def _made_at(call_id: str) -> float:
    """When a call began, in Unix seconds: ids begin with it."""
    return int(call_id[:14], 16) / 1e6
