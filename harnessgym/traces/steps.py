"""The steps of a recorded rollout in order of time: its model calls, and the events between them."""

from typing import cast, get_args

from harnessgym.message import canonical_json
from harnessgym.traces.graph import Graph, GraphEvent
from harnessgym.traces.step import RolloutStep, StepKind

_KINDS = frozenset(get_args(StepKind))
_SIDE = ("side", "count")
"""Calls that are not the policy acting: no steps of it."""

TOLD = "otlp"
"""Source of what an instrumented harness tells of itself: what runs in its sandbox can tell anything."""


def steps_of(graph: Graph, *, told: bool = False) -> list[RolloutStep]:
    """A rollout's steps; with `told`, those too that only spans tell of.

    Side calls are none. Of what happens at one time a call comes first.
    """
    side = {call.id for call in graph.calls.values() if call.kind in _SIDE}
    seen = (event for event in graph.events if told or event.source != TOLD)
    found = [_step(graph, event) for event in seen if event.kind in _KINDS and event.id not in side]
    return sorted(found, key=lambda step: (step.t, step.kind != "llm_call"))


def _step(graph: Graph, event: GraphEvent) -> RolloutStep:
    said = event.attributes
    call = graph.calls.get(event.id)
    arguments = said.get("arguments") or ""
    return RolloutStep(
        id=event.id,
        kind=cast("StepKind", event.kind),
        t=event.t,
        agent_id=event.agent_id,
        target_agent_id=event.target_agent_id,
        tokens=0 if call is None else call.completion_len or 0,
        tool=str(said.get("tool") or ""),
        tool_call_id=str(said.get("tool_call_id") or ""),
        arguments=arguments if isinstance(arguments, str) else canonical_json(arguments),
    )
