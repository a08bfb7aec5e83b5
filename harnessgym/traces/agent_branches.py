"""A rollout's agents with what each of them did: its calls, in branches that continue each other, and who
started it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from harnessgym.traces.facts import AgentFacts, CallFacts
from harnessgym.traces.graph import Graph, GraphEvent

_SIDE = ("side", "count")


@dataclass(frozen=True, slots=True)
class Branch:
    """Calls of one agent, each continuing the one before."""

    calls: tuple[CallFacts, ...]

    @property
    def side(self) -> bool:
        """Whether these are side calls."""
        return self.calls[0].kind in _SIDE

    @property
    def sampled(self) -> int:
        """Tokens sampled in it; those of a part that branches share are counted in the first."""
        return sum(call.completion_len or 0 for call in self.calls)


@dataclass(frozen=True, slots=True)
class AgentBranches:
    """One agent; None stands for calls that are no agent's."""

    agent: AgentFacts | None
    spawn: GraphEvent | None
    """What started it, if that is known."""
    branches: tuple[Branch, ...]
    children: "tuple[AgentBranches, ...]"

    @property
    def calls(self) -> tuple[CallFacts, ...]:
        """All its calls."""
        return tuple(call for branch in self.branches for call in branch.calls)


def agent_tree(graph: Graph) -> tuple[AgentBranches, ...]:
    """Agents that no other started, with those that they started; calls of no agent last."""
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
    """Every agent of a tree, each before those that it started."""
    return [found for item in tree for found in (item, *flat(item.children))]
