"""Which agent of a session speaks: told by its harness in headers where it does, by what its calls say
elsewhere.

A call that continues another's tokens is of that call's agent. One that continues nothing is of the agent
that has its system text (without one: its tools), or of a new one. Dates, ids, counts and working directories
in these texts do not count, nor does the order of the tools. The parent of a new agent is the one whose
answer is the last in its history: that agent handed over. Without such an answer it is the agent that waits
for a tool result, if only one does.
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
    """What a request says of the agent it comes from."""

    key: str
    parent: str | None = None
    """Key of the agent that started it."""
    name: str = ""


def told(headers: Mapping[str, str]) -> Lineage | None:
    """What the headers of a harness that names its agents say; None for one that does not. Names are lower
    case.

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
    """The agents of one session, and which of its calls is whose."""

    rollout_id: str
    session_id: str
    agents: dict[str, AgentRow] = field(default_factory=dict)
    """By key."""
    of_call: dict[str, str] = field(default_factory=dict)
    """Call to agent, by id."""
    waiting: set[str] = field(default_factory=set)
    """Agents whose last answer called tools and who have not come back since."""
    _said: dict[str, str | None] = field(default_factory=dict)
    """Answer, as clients may send it back, to the agent that gave it; None if several did."""
    _keys: dict[tuple[str, str], str] = field(default_factory=dict)
    """Keys of agents by the exact system text and tools that they were made of."""

    def attribute(
        self, request: ModelRequest, parent_call: str | None, context: str
    ) -> tuple[AgentRow, bool]:
        """The agent of a request that continues `parent_call`, and whether it is new. `context` is a
        digest of its tools.
        """
        lineage = told(request.headers)
        if lineage is not None:
            return self._known(lineage.key) or self._new(lineage, self._id_of(lineage.parent), "header")
        inherited = self.of_call.get(parent_call or "")
        if inherited is not None:
            return next(agent for agent in self.agents.values() if agent.id == inherited), False
        key = self._key(request, context)
        return self._known(key) or self._new(Lineage(key), self._starter(request), "content")

    def begin(self, agent: AgentRow, call_id: str) -> None:
        """A call of an agent begins."""
        self.agents[agent.key] = agent
        self.of_call[call_id] = agent.id
        self.waiting.discard(agent.id)

    def end(self, call_id: str, answer: Message) -> None:
        """A call is committed."""
        agent = self.of_call.get(call_id)
        if agent is None:
            return
        if answer.tool_calls:
            self.waiting.add(agent)
        said = _spoken(answer)
        self._said[said] = agent if self._said.get(said, agent) == agent else None

    def _key(self, request: ModelRequest, context: str) -> str:
        """What tells a request's agent from others: its system text, or its tools if it has none."""
        frame = _frame(request)
        exact = (frame.digest, context)
        if exact not in self._keys:
            text = without_volatile(frame.content) or canonical_json(_tools(request))
            self._keys[exact] = Message("system", text).digest
        return self._keys[exact]

    def _starter(self, request: ModelRequest) -> str | None:
        """The agent that a new one comes from, if that can be told."""
        answers = (message for message in reversed(request.messages) if message.role == "assistant")
        handing = next((agent for answer in answers if (agent := self._said.get(_spoken(answer)))), None)
        return handing or (next(iter(self.waiting)) if len(self.waiting) == 1 else None)

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
    """Names and texts of the tools, in no order."""
    return sorted([tool.name, without_volatile(canonical_json(tool.to_template()))] for tool in request.tools)


def _spoken(answer: Message) -> str:
    """What the forms have in common in which clients send an answer back."""
    return replace(replay_form(answer), reasoning="").digest
