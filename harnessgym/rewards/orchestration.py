"""Scores from a rollout's graph alone: its cost, and the speed-up from agents that ran in parallel.

`orchestration.parallelism_speedup` is the work of spawned agents divided by the time in which it was done.
Work is the sum of the seconds from each spawn to the agent's last answer before it returned; the time until
the result is read is not work. The time runs from the first of these spawns to the event that aggregates
them, or to the last return. So it is 1 for agents that run one after another without a pause, and n for n
equally long agents in parallel. Rounds of spawns are summed on both sides. A rollout without spawns has no
such score. Whether the split was right and the aggregation good needs judgement: score
`orchestration.split_correctness` and `orchestration.aggregation_quality` with a `code` or `judge` reward.

Only what passed the proxy counts, not what an instrumented harness reports about itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import anyio.to_thread

from harnessgym.config import Config
from harnessgym.reward import Need, RewardContext, Score
from harnessgym.traces.graph import Graph, GraphEvent
from harnessgym.traces.step import SELF_REPORTED

_SIDE = ("side", "count")


class OrchestrationSettings(Config):
    """No settings."""


class OrchestrationReward:
    """Scores the graph."""

    settings = OrchestrationSettings
    needs: frozenset[Need] = frozenset()
    channels = ("cost.tokens", "cost.calls", "cost.wall_s", "orchestration.parallelism_speedup")

    def __init__(self, settings: OrchestrationSettings) -> None:
        pass

    async def score(self, record: RewardContext) -> Sequence[Score]:
        """The costs, and the speed-up if agents were spawned."""
        return await anyio.to_thread.run_sync(lambda: _scores(record.graph))


def _scores(graph: Graph) -> list[Score]:
    speedup = parallelism_speedup(graph)
    values = costs(graph) | ({} if speedup is None else {"orchestration.parallelism_speedup": speedup})
    return [Score("rollout", "", channel, value) for channel, value in values.items()]


def costs(graph: Graph) -> dict[str, float]:
    """`cost.tokens` sampled, `cost.calls` of the model, and `cost.wall_s` from the first to the last record.

    Side calls are left out, because the policy does not decide on them.
    """
    side = {call.id for call in graph.calls.values() if call.kind in _SIDE}
    made = [call for call in graph.calls.values() if call.id not in side]
    times = [event.t for event in graph.events if event.call_id not in side and event.source != SELF_REPORTED]
    times += [call.created_at + call.timings.get("total_s", 0.0) for call in made]
    return {
        "cost.tokens": float(sum(call.completion_len or 0 for call in made)),
        "cost.calls": float(len(made)),
        "cost.wall_s": round(max(times, default=0.0) - min(times, default=0.0), 6),
    }


@dataclass(frozen=True, slots=True)
class _Child:
    """The times of one spawned agent."""

    begin: float
    end: float
    """Time of its last answer."""
    back: float
    """Time at which its result was read."""


def parallelism_speedup(graph: Graph) -> float | None:
    """Work of spawned agents per second in which it was done; None if no spawned agent returned."""
    work = wall = 0.0
    parents = {event.agent_id for event in _seen(graph, "spawn")}
    for parent in parents:
        joins = sorted(event.t for event in _seen(graph, "aggregate") if event.agent_id == parent)
        children = _children(graph, parent)
        while children:
            # A round is all agents spawned before the next aggregation. `children` is in order of spawning.
            first = children[0].begin
            join = next((t for t in joins if t >= first), None)
            round_ = [child for child in children if join is None or child.begin <= join]
            end = max(child.back for child in round_)
            work += sum(child.end - child.begin for child in round_)
            wall += (end if join is None else max(join, end)) - first
            children = children[len(round_) :]
    return work / wall if wall > 0 else None


def _children(graph: Graph, parent: str | None) -> list[_Child]:
    """The agents that `parent` spawned and that returned, in order of spawning."""
    returns = _seen(graph, "return")
    out = []
    for spawn in _seen(graph, "spawn"):
        back = next((event for event in returns if _ends(event, spawn)), None)
        if spawn.agent_id == parent and back is not None:
            out.append(_Child(spawn.t, _last_answer(graph, spawn, back), back.t))
    return sorted(out, key=lambda child: child.begin)


def _seen(graph: Graph, kind: str) -> list[GraphEvent]:
    return [event for event in graph.of_kind(kind) if event.source != SELF_REPORTED]


def _last_answer(graph: Graph, spawn: GraphEvent, back: GraphEvent) -> float:
    """Time of an agent's last answer before it returned, or of its return if its calls are not known."""
    made = (call for call in graph.calls.values() if call.agent_id == back.agent_id is not None)
    ends = (
        call.created_at + call.timings.get("total_s", 0.0)
        for call in made
        if spawn.t <= call.created_at <= back.t
    )
    return min(max(ends, default=back.t), back.t)


def _ends(event: GraphEvent, spawn: GraphEvent) -> bool:
    """Whether a return event belongs to a spawn."""
    if event.t < spawn.t:
        return False
    if spawn.target_agent_id is not None:
        return event.agent_id == spawn.target_agent_id
    made = spawn.attributes.get("tool_call_id")
    return made is not None and event.attributes.get("tool_call_id") == made
