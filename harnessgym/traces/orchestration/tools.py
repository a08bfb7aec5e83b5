"""Tool calls that wait for their results, and the matching of results to calls.

A result with the id of a call belongs to that call. A result with another id, or none, is matched by
inference to an open call of its agent's latest answer: the first with its name or, if it has no name, the
first one. Any other result is unmatched. Results that a client sends again with its history are ignored.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from harnessgym.message import Message, ToolCall
from harnessgym.traces.orchestration.agents import detaches, starts_agent, texts_of
from harnessgym.traces.orchestration.rows import OBSERVED, EdgeEvidence

_BY_NAME = EdgeEvidence("order and name", 0.8)
_BY_ORDER = EdgeEvidence("order", 0.6)
UNMATCHED = EdgeEvidence("unmatched")


@dataclass(slots=True)
class OpenCall:
    """One tool call."""

    event_id: str
    call_id: str
    """The model call that made it."""
    agent_id: str
    call: ToolCall
    t: float
    target: str | None = None
    """The agent that the call started."""
    _texts: list[str] | None = None

    @property
    def texts(self) -> list[str]:
        """The texts in its arguments, longest first."""
        if self._texts is None:
            self._texts = texts_of(self.call)
        return self._texts

    @property
    def starts(self) -> bool:
        """Whether its name says that it starts an agent."""
        return starts_agent(self.call.name)

    @property
    def detaches(self) -> bool:
        """Whether it starts the agent in the background: its result does not wait for the agent."""
        return detaches(self.call)


@dataclass(frozen=True, slots=True)
class MatchedResult:
    """A result and its call."""

    message: Message
    call: OpenCall | None
    why: EdgeEvidence


@dataclass
class ToolCalls:
    """The tool calls of one session."""

    open: dict[str, OpenCall] = field(default_factory=dict)
    """Calls without a result, by the tool call's id, in the order they were made."""
    started: dict[str, OpenCall] = field(default_factory=dict)
    """Calls with a result whose name says that they start an agent, but whose agent has not appeared yet."""
    _joined: set[str] = field(default_factory=set)
    _foreign: set[tuple[str, str | None, str]] = field(default_factory=set)
    """Results without the id of a known call that were read already: (reader, id, digest)."""
    _latest: dict[str, str] = field(default_factory=dict)
    """Maps an agent to its last model call that called tools."""

    def add(self, call: OpenCall) -> None:
        """Add a tool call. If an id is used twice, later results belong to the newer call."""
        self.open[call.call.id] = call
        self._joined.discard(call.call.id)
        self._latest[call.agent_id] = call.call_id

    def join(
        self,
        agent_id: str,
        history: Sequence[Message],
        recent: Sequence[Message],
        *,
        harness_names_agents: bool,
    ) -> list[MatchedResult]:
        """Return the results that `agent_id` reads for the first time.

        `recent` messages follow its last answer, `history` messages do not. If the harness names its agents,
        calls of other agents in the history are not this agent's own.
        """
        out = list[MatchedResult]()
        rest = list[Message]()
        for message in (*history, *recent):
            call = self.open.get(message.tool_call_id or "")
            if call is not None:
                if call.agent_id == agent_id or not harness_names_agents:
                    out.append(self._close(message, call, OBSERVED))
            elif message.tool_call_id not in self._joined and self._unknown(agent_id, message):
                rest.append(message)
        if not rest:
            return out
        behind = set(map(id, recent))
        return [*out, *(self._inferred(agent_id, message, behind) for message in rest)]

    def close(self, tool_call_id: str) -> None:
        """Record that a call has its result."""
        self._joined.add(tool_call_id)
        call = self.open.pop(tool_call_id, None)
        if call is not None and call.target is None and call.starts:
            self.started[tool_call_id] = call

    def keep(self, agent_id: str, tool_call_id: str | None, digest: str) -> None:
        """Record that a result without the id of a known call was read."""
        self._foreign.add((agent_id, tool_call_id, digest))

    def claim(self, tool_call_id: str, agent_id: str) -> OpenCall | None:
        """Record that a call started an agent. Returns the call, if it is known."""
        call = self.open.get(tool_call_id) or self.started.pop(tool_call_id, None)
        if call is not None:
            call.target = agent_id
        return call

    def hand_over(self, call_id: str, agent_id: str) -> None:
        """Record that an answer handed over to an agent: its tool calls start no other agent."""
        for call in [
            call for call in (*self.open.values(), *self.started.values()) if call.call_id == call_id
        ]:
            call.target = agent_id
            self.started.pop(call.call.id, None)

    def unclaimed(self) -> list[OpenCall]:
        """Return the calls that may have started an agent not yet known, those with a result first."""
        return [call for call in (*self.started.values(), *self.open.values()) if call.target is None]

    def _unknown(self, agent_id: str, message: Message) -> bool:
        return (agent_id, message.tool_call_id, message.digest) not in self._foreign

    def _inferred(self, agent_id: str, message: Message, behind: set[int]) -> MatchedResult:
        self.keep(agent_id, message.tool_call_id, message.digest)
        latest = self._latest.get(agent_id)
        own = [call for call in self.open.values() if call.call_id == latest] if id(message) in behind else []
        named = [call for call in own if call.call.name == message.name]
        if named:
            return self._close(message, named[0], _BY_NAME)
        if own and message.name is None:
            return self._close(message, own[0], _BY_ORDER)
        return MatchedResult(message, None, UNMATCHED)

    def _close(self, message: Message, call: OpenCall, why: EdgeEvidence) -> MatchedResult:
        self.close(call.call.id)
        return MatchedResult(message, call, why)
