"""Graphs of rollouts made by hand, for what reads graphs and needs no store."""

from harnessgym.store.facts import AgentFacts, CallFacts, RolloutFacts
from harnessgym.traces.graph import Graph, GraphEvent

ROLLOUT = RolloutFacts(
    id="rollout",
    run_id="run",
    group_id="group",
    policy_id="policy-id",
    policy="policy",
    task_set="set",
    task_key="task",
    harness="pi",
    seed=0,
    status="finished",
    stop_reason="finished",
    verdict="valid",
    created_at=0.0,
    ended_at=9.0,
)


def a_call(name, agent_id=None, parent=None, **changed):
    """A finished policy call that sampled 5 tokens after a prompt of 10."""
    fields = {
        "id": name,
        "session_id": "session",
        "ordinal": 0,
        "agent_id": agent_id,
        "parent_call_id": parent,
        "protocol": "chat",
        "kind": "policy",
        "side_call": None,
        "status": "finished",
        "prompt_len": 10,
        "prompt_segment": f"{name}-prompt",
        "completion_len": 5,
        "completion_segment": f"{name}-completion",
        "versions": (),
        "sampling": {},
        "finish_reason": "stop",
        "upstream": "engine",
        "usage": {},
        "timings": {},
        "break_class": None,
        "break_detail": None,
        "error": None,
        "created_at": 1.0,
    }
    return CallFacts(**{**fields, **changed})


def an_agent(name, parent=None, spawn=None, evidence=None, shown=None):
    """An agent whose id is `name`."""
    return AgentFacts(name, shown or name, None, parent, spawn, "session", evidence)


def an_event(name, kind, t=1.0, agent_id=None, **changed):
    """An event that the proxy observed."""
    fields = {
        "target_agent_id": None,
        "call_id": None,
        "attributes": {},
        "evidence": None,
        "confidence": None,
        "source": "proxy",
        "span_id": None,
    }
    return GraphEvent(name, kind, t, agent_id, **{**fields, **changed})


def a_graph(*calls, agents=(), events=()):
    """A graph without edges or rewards."""
    return Graph(ROLLOUT, tuple(agents), tuple(events), (), (), {call.id: call for call in calls})
