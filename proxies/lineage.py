"""Attributes a session's calls to agents: by the harness's headers if it sends any, otherwise by content.

A call that continues another call's tokens belongs to that call's agent. A call that continues nothing
belongs to the agent with its system text (without one: its tools), or to a new agent. Dates, ids, counts and
working directories in these texts are ignored, and so is the order of the tools. The parent of a new agent is
the agent whose answer is the last in its history: that agent handed over. Without such an answer it is the
agent that waits for a tool result, if there is exactly one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from harnessgym.message import Message, canonical_json
from harnessgym.store.agents import AgentEvidence, AgentRow
from harnessgym.store.tables import new_id
from harnessgym.traces.difference import without_volatile
from harnessgym.traces.forest import replay_form
from proxies.dialect import ModelRequest

_MAIN = "main"


@dataclass(frozen=True, slots=True)
class Lineage:
    """The agent that a request claims to come from."""

    key: str
    parent: str | None = None
    """Key of the agent that started it."""
    name: str = ""


def agent_from_headers(headers: Mapping[str, str]) -> Lineage | None:
    """The agent in a harness's headers (lower-case names); None if the harness does not name its agents.

    Codex: `thread-id`, `x-codex-parent-thread-id`. Claude Code: `x-claude-code-agent-id`, which its main
    agent lacks. OpenCode: `x-session-id`, `x-parent-session-id`.
    """
    if thread := headers.get("thread-id"):
        return Lineage(thread, headers.get("x-codex-parent-thread-id"), headers.get("x-openai-subagent", ""))
    if agent := headers.get("x-claude-code-agent-id"):
        return Lineage(agent, headers.get("x-claude-code-parent-agent-id", _MAIN))
    if "x-claude-code-session-id" in headers:
        return Lineage(_MAIN)
    if session := headers.get("x-session-id"):
        return Lineage(session, headers.get("x-parent-session-id"))
    return None


@dataclass
class Lineages:
    """The agents of one session, and the agent of each call."""

    rollout_id: str
    session_id: str
    agents: dict[str, AgentRow] = field(default_factory=dict)
    """By key."""
    of_call: dict[str, str] = field(default_factory=dict)
    """Call id to agent id."""
    waiting: set[str] = field(default_factory=set)
    """Agents whose last answer called tools and that have sent no request since."""
    _speakers: dict[str, str | None] = field(default_factory=dict)
    """Answer, in the form that clients send back, to the agent that gave it; None if several gave it."""
    _keys: dict[tuple[str, str], str] = field(default_factory=dict)
    """Keys of agents, cached by the exact system text and tools."""

    def attribute(
        self, request: ModelRequest, parent_call: str | None, context: str
    ) -> tuple[AgentRow, bool]:
        """The agent of a request that continues `parent_call`, and whether it is new. `context` is the digest
        of its tools.
        """
        lineage = agent_from_headers(request.headers)
        if lineage is not None:
            return self._known(lineage.key) or self._new(lineage, self._id_of(lineage.parent), "header")
        inherited = self.of_call.get(parent_call or "")
        if inherited is not None:
            return next(agent for agent in self.agents.values() if agent.id == inherited), False
        key = self._key(request, context)
        return self._known(key) or self._new(Lineage(key), self._starter(request), "content")

    def begin(self, agent: AgentRow, call_id: str) -> None:
        """Add a call of an agent."""
        self.agents[agent.key] = agent
        self.of_call[call_id] = agent.id
        self.waiting.discard(agent.id)

    def end(self, call_id: str, answer: Message) -> None:
        """Add the answer of a committed call."""
        agent = self.of_call.get(call_id)
        if agent is None:
            return
        if answer.tool_calls:
            self.waiting.add(agent)
        spoken = _spoken(answer)
        self._speakers[spoken] = agent if self._speakers.get(spoken, agent) == agent else None

    def _key(self, request: ModelRequest, context: str) -> str:
        """The key of a request's agent: its system text, or its tools if it has none."""
        frame = _frame(request)
        exact = (frame.digest, context)
        if exact not in self._keys:
            text = without_volatile(frame.content) or canonical_json(_tools(request))
            self._keys[exact] = Message("system", text).digest
        return self._keys[exact]

    def _starter(self, request: ModelRequest) -> str | None:
        """The parent of a new agent, if it is unambiguous."""
        answers = (message for message in reversed(request.messages) if message.role == "assistant")
        handing_over = next(
            (agent for answer in answers if (agent := self._speakers.get(_spoken(answer)))), None
        )
        return handing_over or (next(iter(self.waiting)) if len(self.waiting) == 1 else None)

    def _known(self, key: str) -> tuple[AgentRow, bool] | None:
        agent = self.agents.get(key)
        return None if agent is None else (agent, False)

    def _id_of(self, key: str | None) -> str | None:
        agent = self.agents.get(key or "")
        return None if agent is None else agent.id

    def _new(self, lineage: Lineage, parent: str | None, evidence: AgentEvidence) -> tuple[AgentRow, bool]:
        name = lineage.name or (_MAIN if not self.agents else f"agent {len(self.agents)}")
        return AgentRow(new_id(), self.rollout_id, self.session_id, lineage.key, name, parent, evidence), True


def _frame(request: ModelRequest) -> Message:
    """The system message that opens a conversation."""
    first = request.messages[0] if request.messages else None
    return first.without_nonce() if first is not None and first.role == "system" else Message("system")


def _tools(request: ModelRequest) -> list[list[str]]:
    """Names and specifications of the tools, sorted."""
    return sorted([tool.name, without_volatile(canonical_json(tool.to_template()))] for tool in request.tools)


def _spoken(answer: Message) -> str:
    """A digest of an answer that is equal for all forms in which clients send it back."""
    return replace(replay_form(answer), reasoning="").digest
