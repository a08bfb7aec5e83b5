"""A rollout's agents as a tree, each with its calls grouped into branches and the event that started it."""

from collections.abc import Sequence
from dataclasses import dataclass

from harnessgym.store.facts import AgentFacts, CallFacts
from harnessgym.traces.graph import Graph, GraphEvent

_SIDE = ("side", "count")


@dataclass(frozen=True, slots=True)
class Branch:
    """Calls of one agent, each of which continues the previous one."""

    calls: tuple[CallFacts, ...]

    @property
    def side(self) -> bool:
        """Whether these are side calls."""
        return self.calls[0].kind in _SIDE

    @property
    def sampled(self) -> int:
        """Number of tokens sampled in it. Calls that branches share count in the first of these branches."""
        return sum(call.completion_len or 0 for call in self.calls)


@dataclass(frozen=True, slots=True)
class AgentBranches:
    """One agent; None for the calls that belong to no agent."""

    agent: AgentFacts | None
    spawn: GraphEvent | None
    """The event that started it, if known."""
    branches: tuple[Branch, ...]
    children: "tuple[AgentBranches, ...]"

    @property
    def calls(self) -> tuple[CallFacts, ...]:
        """All its calls."""
        return tuple(call for branch in self.branches for call in branch.calls)


def agent_tree(graph: Graph) -> tuple[AgentBranches, ...]:
    """Return the agents that no other agent started, with those below them. Calls of no agent come last."""
    known = {agent.id for agent in graph.agents}
    events = {event.id: event for event in graph.events}
    children: dict[str | None, list[AgentFacts]] = {}
    for agent in graph.agents:
        parent = agent.parent_agent_id if agent.parent_agent_id in known else None
        children.setdefault(parent, []).append(agent)

    def made(agent: AgentFacts) -> AgentBranches:
        below = tuple(made(child) for child in children.get(agent.id, ()))
        return AgentBranches(agent, events.get(agent.spawn_event_id or ""), _branches(graph, agent.id), below)

    roots = tuple(made(agent) for agent in children.get(None, ()))
    nameless = _branches(graph, None)
    return (*roots, AgentBranches(None, None, nameless, ())) if nameless else roots


def _branches(graph: Graph, agent_id: str | None) -> tuple[Branch, ...]:
    # A call extends the branch that ends in its parent. If another call has already extended that branch, it
    # no longer ends there, and the call opens a new one. Side calls never share a branch with others.
    own = [call for call in graph.calls.values() if call.agent_id == agent_id]
    branches: list[list[CallFacts]] = []
    ends: dict[str, list[CallFacts]] = {}
    for call in own:
        behind = ends.pop(call.parent_call_id or "", None)
        if behind is None or (behind[-1].kind in _SIDE) != (call.kind in _SIDE):
            behind = []
            branches.append(behind)
        behind.append(call)
        ends[call.id] = behind
    return tuple(Branch(tuple(calls)) for calls in branches)


def flat(tree: Sequence[AgentBranches]) -> list[AgentBranches]:
    """Return all agents of a tree, each before the agents that it started."""
    return [agent for item in tree for agent in (item, *flat(item.children))]
