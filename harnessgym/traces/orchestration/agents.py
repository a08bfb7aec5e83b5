"""The agents of a session, as seen in its traffic: who started whom, each one's last answer and state."""

from dataclasses import dataclass, field

from harnessgym.message import Message
from harnessgym.store.edges import EdgeRow
from harnessgym.traces.orchestration.evidence import texts_of


@dataclass(frozen=True, slots=True)
class Reply:
    """An agent's last answer."""

    call_id: str
    t: float
    message: Message
    finish_reason: str
    sibling: bool = False
    """Whether it is one of several answers to one request."""

    @property
    def acts(self) -> bool:
        """Whether it calls tools."""
        return bool(self.message.tool_calls)

    @property
    def texts(self) -> list[str]:
        """Texts in which another agent may receive it: its text and longer arguments of its tool calls."""
        text = self.message.content.strip()
        found = [text for call in self.message.tool_calls for text in texts_of(call) if len(text) >= 8]
        return ([text] if text else []) + found

    def is_in(self, history: Message) -> bool:
        """Return whether a message of a history is this answer."""
        calls = [call.name for call in self.message.tool_calls]
        return (
            history.content.strip() == self.message.content.strip()
            and [call.name for call in history.tool_calls] == calls
        )


@dataclass(slots=True)
class Agent:
    """One agent."""

    id: str
    parent: str | None = None
    spawned: bool = False
    """Whether another agent started it. An agent that took over by a handoff was not spawned."""
    open: bool = False
    """Whether it was started and has not returned yet."""
    ended: bool = False
    tool_call_id: str | None = None
    """The tool call that started it last."""
    last_call: str | None = None
    said: Reply | None = None
    successor: str | None = None
    """The agent that it handed over to."""
    children: list[str] = field(default_factory=list)
    """Agents that it started and that have not returned yet."""
    reads: list[EdgeRow] = field(default_factory=list)
    """Edges to its last call, from the events that the call reacted to."""

    @property
    def resting(self) -> Reply | None:
        """Its last answer, if it has made no request since."""
        return self.said if self.said is not None and self.said.call_id == self.last_call else None


@dataclass
class Members:
    """The agents of one session, by id."""

    by_id: dict[str, Agent] = field(default_factory=dict)

    def get(self, agent_id: str) -> Agent:
        """Return an agent. Adds it if it is new."""
        member = self.by_id.get(agent_id)
        if member is None:
            member = self.by_id[agent_id] = Agent(agent_id)
        return member

    def start(self, agent_id: str, parent: str | None, tool_call_id: str | None) -> None:
        """Record that an agent is started, or started again."""
        member = self.get(agent_id)
        member.spawned = member.open = True
        member.ended = False
        member.tool_call_id = tool_call_id
        member.parent = parent
        if parent is not None and agent_id not in self.get(parent).children:
            self.get(parent).children.append(agent_id)

    def come_back(self, agent_id: str) -> None:
        """Record that an agent's answer reached the agent that started it."""
        member = self.get(agent_id)
        member.open = False
        member.ended = True
        if member.parent is not None and agent_id in self.get(member.parent).children:
            self.get(member.parent).children.remove(agent_id)

    def hand_over(self, agent_id: str, successor: str) -> None:
        """Record that another agent continues in an agent's place."""
        self.get(agent_id).successor = successor
        # Agents may hand over in a circle. The one that works now is the end of the chain.
        self.get(successor).successor = None

    def last(self, agent_id: str) -> Agent:
        """Return the agent that continues in an agent's place, or the agent itself."""
        member = self.get(agent_id)
        for _ in range(len(self.by_id)):
            if member.successor is None:
                break
            member = self.get(member.successor)
        return member

    def leader(self) -> Agent | None:
        """Return the agent that answered last among those that no other agent started."""
        own = [member for member in self.by_id.values() if not member.spawned and member.resting is not None]
        return max(own, key=lambda member: member.said.t if member.said else 0.0, default=None)
