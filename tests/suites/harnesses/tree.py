"""Whether the agents of a run, and what they did to each other, were derived as the harness really ran
them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from harnessgym.store import edges, events
from harnessgym.store.edges import EdgeRow
from harnessgym.store.events import EventRow
from tests.suites.harnesses.scenarios import Scenario

_FOUND = "The folder is called workspace."


@dataclass(frozen=True, slots=True)
class Tree:
    """What a harness's run of the plan `task` must show."""

    spawn: str = ""
    """The tool that starts the sub-agent."""
    evidence: str = "arguments"
    """Why its call is known to have started it."""
    handoff: bool = False
    """Whether the main agent hands over, and so does not stop."""
    ends: str = ""
    """The tool with which an agent ends; its call has no result."""
    stops: bool = True
    """Whether the agent at work ends with words."""


TREES: Mapping[str, Tree] = {
    "qwen_code": Tree("agent"),
    "opencode": Tree("task", "header, arguments"),
    "deepagents": Tree("task"),
    "claude_code": Tree("Agent", "header, arguments"),
    "codex": Tree("multi_agent_v1__spawn_agent", "header, arguments"),
    "gemini_cli": Tree("invoke_agent", ends="complete_task"),
    "openai_agents": Tree(handoff=True),
    "mini_swe_agent": Tree(ends="bash", stops=False),
}
"""By harness; those without one have no other agents."""


def tree_complaints(conn: Connection, rollout_id: str, scenario: Scenario) -> list[str]:
    """What is wrong with the derived graph of a run of the plan `task`; other plans have no tree of their
    own.
    """
    if scenario.plan != "task":
        return []
    found, drawn = events.of_rollout(conn, rollout_id), edges.of_rollout(conn, rollout_id)
    tree = TREES.get(scenario.harness, Tree())
    return [*_tools(found, tree), *_agents(found, drawn, tree), *_decisions(found, tree)]


def _tools(found: Sequence[EventRow], tree: Tree) -> list[str]:
    """Every call of a tool has its one result, joined by its id."""
    made = {
        event.attributes["tool_call_id"]: event.attributes["tool"]
        for event in found
        if event.kind == "tool_call"
    }
    read = [event for event in found if event.kind == "tool_result"]
    inferred = [event.evidence for event in read if event.evidence is not None]
    answered = sorted(event.attributes["tool_call_id"] for event in read)
    missing = [tool for key, tool in made.items() if key not in answered]
    out = [f"results are joined by {inferred}"] if inferred else []
    out += [f"{len(answered)} results, not all of another call"] if len(set(answered)) < len(answered) else []
    return out + ([f"no result of {missing}"] if missing != ([tree.ends] if tree.ends else []) else [])


def _agents(found: Sequence[EventRow], drawn: Sequence[EdgeRow], tree: Tree) -> list[str]:
    spawns = [event for event in found if event.kind == "spawn"]
    returns = [event for event in found if event.kind == "return"]
    if not tree.spawn:
        return [f"an agent was started by {event.attributes}" for event in spawns]
    if len(spawns) != 1 or len(returns) != 1:
        return [f"{len(spawns)} agents were started and {len(returns)} came back"]
    (spawn,), (back,) = spawns, returns
    said = [
        event.attributes["text"]
        for event in found
        if event.kind == "message" and event.attributes["channel"] == "result"
    ]
    claims = {
        f"it was started by {spawn.attributes.get('tool')}": spawn.attributes.get("tool") == tree.spawn,
        f"that is known by {spawn.evidence}": spawn.evidence == tree.evidence,
        f"{back.agent_id} came back": (back.agent_id, back.target_agent_id)
        == (spawn.target_agent_id, spawn.agent_id),
        f"that is known by {back.evidence}": back.evidence == "result text",
        f"it said {said}": said == [_FOUND],
        "its first call is not of the spawn": any(
            edge.kind == "spawn" and edge.source_event_id == spawn.id for edge in drawn
        ),
    }
    return [f"tree: {complaint}" for complaint, well in claims.items() if not well]


def _decisions(found: Sequence[EventRow], tree: Tree) -> list[str]:
    decided = [event for event in found if event.kind == "orchestrator_decision"]
    kinds = [event.attributes["decision"] for event in decided]
    expected = ["handoff"] if tree.handoff else ["delegate"] if tree.spawn else []
    if kinds != [*expected, *(["stop"] if tree.stops else [])]:
        return [f"decisions are {kinds}"]
    if tree.stops and expected and (decided[0].agent_id == decided[-1].agent_id) == tree.handoff:
        return [f"{decided[-1].agent_id} stops, not the agent at work"]
    return []
