"""Which agent of a session speaks: told by its harness in headers where it does, by what its calls say elsewhere.

A call that continues another's tokens is of that call's agent. One that continues nothing is of the agent that has its system
text and tools, or of a new one; its parent is the agent that waits for a tool result, if only one does.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from harnessgym.message import Message
from harnessgym.store.agents import AgentEvidence, AgentRow
from harnessgym.store.tables import new_id
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
    """What the headers of a harness that names its agents say; None for one that does not. Names are lower case.

    Codex: `thread-id`, `x-codex-parent-thread-id`. Claude Code: `x-claude-code-agent-id`, which its main agent lacks. OpenCode:
    `x-session-id`, `x-parent-session-id`.
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

    def attribute(self, request: ModelRequest, parent_call: str | None, context: str) -> tuple[AgentRow, bool]:
        """The agent of a request that continues `parent_call`, and whether it is new. `context` is a digest of its tools."""
        lineage = told(request.headers)
        if lineage is not None:
            return self._known(lineage.key) or self._new(lineage, self._id_of(lineage.parent), "header")
        inherited = self.of_call.get(parent_call or "")
        if inherited is not None:
            return next(agent for agent in self.agents.values() if agent.id == inherited), False
        key = Message("system", _frame(request) + context).digest
        parents = self.waiting if len(self.waiting) == 1 else ()
        return self._known(key) or self._new(Lineage(key), next(iter(parents), None), "content")

    def begin(self, agent: AgentRow, call_id: str) -> None:
        """A call of an agent begins."""
        self.agents[agent.key] = agent
        self.of_call[call_id] = agent.id
        self.waiting.discard(agent.id)

    def end(self, call_id: str, answer: Message) -> None:
        """A call is committed."""
        if answer.tool_calls and (agent := self.of_call.get(call_id)):
            self.waiting.add(agent)

    def _known(self, key: str) -> tuple[AgentRow, bool] | None:
        agent = self.agents.get(key)
        return None if agent is None else (agent, False)

    def _id_of(self, key: str | None) -> str | None:
        agent = self.agents.get(key or "")
        return None if agent is None else agent.id

    def _new(self, lineage: Lineage, parent: str | None, evidence: AgentEvidence) -> tuple[AgentRow, bool]:
        name = lineage.name or (_MAIN if not self.agents else f"agent {len(self.agents)}")
        return AgentRow(new_id(), self.rollout_id, self.session_id, lineage.key, name, parent, evidence), True


def _frame(request: ModelRequest) -> str:
    """The system text that opens a conversation."""
    first = request.messages[0] if request.messages else None
    return first.content if first is not None and first.role == "system" else ""
