"""The tree of a rollout's agents, as text and as JSON."""

from dataclasses import asdict
from typing import Any

from rich.text import Text
from rich.tree import Tree

from harnessgym.cli.traces.call_table import EXPECTED_BREAKS, AgentLabels, rollout_json
from harnessgym.cli.traces.printed import one_line
from harnessgym.message import canonical_json
from harnessgym.traces.agent_branches import AgentBranches, Branch, agent_tree, flat
from harnessgym.traces.graph import Graph, GraphEvent

_LEFT_OUT = ("llm_call", "span")
"""Events that are not drawn: calls are in the branches, and what raw spans say about agents has its own
events."""


def tree_json(graph: Graph, *, events: bool) -> dict[str, Any]:
    """See the command's help."""
    numbers = {name: at for at, name in enumerate(graph.calls)}
    agents = [_agent_json(item, numbers) for item in flat(agent_tree(graph))]
    out: dict[str, Any] = {"rollout": rollout_json(graph.rollout), "agents": agents}
    return {**out, "events": graph.events, "edges": graph.edges} if events else out


def _agent_json(item: AgentBranches, numbers: dict[str, int]) -> dict[str, Any]:
    agent = item.agent
    spawn = item.spawn
    started = None if spawn is None else {
        "event_id": spawn.id,
        "tool": spawn.attributes.get("tool"),
        "evidence": spawn.evidence,
        "confidence": spawn.confidence,
    }  # fmt: skip
    own: dict[str, Any] = {} if agent is None else asdict(agent)
    return {
        **{name: own.get(name) for name in ("id", "name", "role", "parent_agent_id", "evidence")},
        "spawn": started,
        "calls": len(item.calls),
        "sampled_tokens": sum(call.completion_len or 0 for call in item.calls),
        "prompt_tokens": sum(call.prompt_len for call in item.calls),
        "branches": [
            {
                "calls": [numbers[call.id] for call in branch.calls],
                "sampled_tokens": branch.sampled,
                "side": branch.side,
            }
            for branch in item.branches
        ],
    }


def drawn(graph: Graph, *, events: bool) -> Tree:
    """The tree as a `rich` object."""
    rollout = graph.rollout
    drawing = _Drawing(graph, events=events)
    ended = rollout.stop_reason or rollout.status
    root = Tree(
        Text(f"Rollout {rollout.id}", style="bold").append(f"  {rollout.harness} · {ended}", style="dim")
    )
    for item in agent_tree(graph):
        drawing.agent(root, item)
    drawing.unattributed(root)
    return root


class _Drawing:
    def __init__(self, graph: Graph, *, events: bool) -> None:
        self.labels = AgentLabels(graph.agents, "no agent")
        self.numbers = {name: at for at, name in enumerate(graph.calls)}
        self.happened = [event for event in graph.events if event.kind not in _LEFT_OUT] if events else []
        self.start = min((event.t for event in graph.events), default=0.0)

    def agent(self, above: Tree, item: AgentBranches) -> None:
        """Add an agent with its branches, its events and the agents it started."""
        agent_id = None if item.agent is None else item.agent.id
        colour = self.labels.colour(agent_id) if item.agent else "dim"
        line = Text(self.labels.name(agent_id), style=f"bold {colour}")
        prompt = max((call.prompt_len for call in item.calls), default=0)
        sampled = sum(call.completion_len or 0 for call in item.calls)
        line.append(
            f"  {_number(len(item.calls), 'call')}, {sampled:,} tokens sampled, longest prompt {prompt:,}"
        )
        if (why := _started(item)) is not None:
            line.append(f"  {why}", style="dim")
        node = above.add(line)
        for branch in item.branches:
            self._branch(node, branch)
        for event in self.happened:
            if event.agent_id is not None and event.agent_id == agent_id:
                node.add(self._event(event))
        for child in item.children:
            self.agent(node, child)

    def unattributed(self, above: Tree) -> None:
        """Add the events that belong to no agent."""
        for event in self.happened:
            if event.agent_id is None:
                above.add(self._event(event))

    def _branch(self, above: Tree, branch: Branch) -> None:
        numbers = [self.numbers[call.id] for call in branch.calls]
        first = branch.calls[0]
        side = f" {first.side_call or 'side call'}" if branch.side else ""
        after = self.numbers.get(first.parent_call_id or "")
        behind = "" if after is None else f" behind #{after}"
        line = Text(
            f"branch{side} {_ranges(numbers)}{behind}: {branch.sampled:,} tokens",
            style="dim" if branch.side else "",
        )
        if first.break_class is not None and first.break_class not in EXPECTED_BREAKS:
            line.append(f"  break: {first.break_class}", style="red")
        above.add(line)

    def _event(self, event: GraphEvent) -> Text:
        line = Text(f"+{event.t - self.start:.2f} s ", style="dim").append(event.kind, style="bold")
        if event.target_agent_id is not None:
            line.append(
                f" → {self.labels.name(event.target_agent_id)}",
                style=self.labels.colour(event.target_agent_id),
            )
        if event.call_id is not None and event.call_id in self.numbers:
            line.append(f" #{self.numbers[event.call_id]}", style="dim")
        if event.attributes:
            line.append(f" {_attributes(event)}")
        if (sure := _sure(event.evidence, event.confidence)) is not None:
            line.append(f" ({sure})", style="dim")
        return line if event.source == "proxy" else line.append(f" [{event.source}]", style="dim")


def _attributes(event: GraphEvent) -> str:
    pairs = (
        f"{name}={value if isinstance(value, str) else canonical_json(value)}"
        for name, value in event.attributes.items()
    )
    return one_line(" ".join(pairs), 120)


def _started(item: AgentBranches) -> str | None:
    """What started an agent, and the evidence for it."""
    spawn = item.spawn
    agent = item.agent
    if spawn is not None:
        tool = spawn.attributes.get("tool")
        how = _sure(spawn.evidence, spawn.confidence)
        return f"spawned{f' by {tool}' if tool else ''}" + (f" ({how})" if how else "")
    if agent is not None and agent.evidence:
        return f"known by {agent.evidence}"
    return None


def _sure(evidence: str | None, confidence: float | None) -> str | None:
    if confidence is not None:
        return (
            f"inferred by {evidence}, {confidence:.0%} sure"
            if evidence
            else f"inferred, {confidence:.0%} sure"
        )
    return evidence


def _number(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _ranges(numbers: list[int]) -> str:
    """Call numbers as text, with consecutive ones as ranges."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and parts[-1][-1] == number - 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    return ", ".join("-".join(f"#{number}" for number in part) for part in parts)
