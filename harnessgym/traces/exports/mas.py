"""The orchestration trace schema of awesome-llm-mas-rl: a document per rollout, validated before writing.

None of the schema's ten kinds of event is a model call. A call is its agent's decision about what to do next,
so it becomes an `orchestrator_decision` with `x_event: "llm_call"`. Decisions without that field are those in
the schema's own sense. A request that the proxy refused is a `safety_event` with `x_event:
"refused_request"`. Everything else that the schema has no field for is in `x_` fields of events, which it
allows: `x_call_id`, `x_token_ref` (segments, counts, policy and versions of the tokens), attributes,
evidence, and `x_inferred_edges` on the target of an inferred edge. The first event holds the rollout and its
agents.

`t` is in Unix seconds. Rewards of the rollout are keyed by channel, others by `unit/target/channel`.

`mas_schema.json` is written from the description of the schema (`trace-schema/trace_schema.json`). `check`
also requires unique event ids and edges between existing events.
"""

import importlib
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from harnessgym.errors import TraceError
from harnessgym.store.facts import AgentFacts, CallFacts, RewardFacts
from harnessgym.traces.atomic_files import write_documents
from harnessgym.traces.export import TellsPolicies, TracedRollout, needed
from harnessgym.traces.graph import Edge, Graph, GraphEvent

Json = dict[str, Any]
SCHEMA = Path(__file__).with_name("mas_schema.json")
KINDS = (
    "orchestrator_decision", "spawn", "despawn", "message", "tool_call", "tool_result", "return", "aggregate",
    "human_intervention", "safety_event",
)  # fmt: skip
NOBODY = "unattributed"
"""Agent of the events that belong to no agent."""
_OURS = {"llm_call": "orchestrator_decision", "refused_request": "safety_event"}
_UNITS = ("token", "turn", "message", "tool_call", "agent", "rollout", "team")


class Mas:
    """One document per rollout."""

    tells_policies: ClassVar[TellsPolicies] = "calls"

    def write(self, rollouts: Iterable[TracedRollout], out: Path) -> int:
        """Write the documents.

        Raises `TraceError` for a rollout without events, and `ConfigError` if jsonschema is missing.
        """
        return write_documents(rollouts, out, document)


def document(rollout: TracedRollout) -> Json:
    """Return a rollout as a trace of the schema. Raises `TraceError` if it has no events."""
    graph = rollout.graph
    if not graph.events:
        raise TraceError(
            f"Rollout {rollout.id} has no events, but an orchestration trace needs at least one."
        )
    events = [_event(rollout, event) for event in graph.events]
    events[0] |= {"x_rollout": _facts(graph), "x_agents": [asdict(agent) for agent in graph.agents]}
    by_id = {event["id"]: event for event in events}
    for edge in graph.edges:
        if edge.evidence is not None or edge.confidence is not None:
            inferred_edge = {
                "src": edge.source,
                "type": edge.kind,
                "evidence": edge.evidence,
                "confidence": edge.confidence,
            }
            by_id[edge.target].setdefault("x_inferred_edges", []).append(inferred_edge)
    out = {
        "trace_id": rollout.id,
        "task_id": f"{graph.rollout.task_set}/{graph.rollout.task_key}",
        "system": graph.rollout.harness,
        "topology": _topology(graph.agents),
        "events": events,
        "edges": [_edge(edge) for edge in graph.edges],
        "rewards": {_key(reward): reward.value for reward in graph.rewards},
        "costs": _costs(events),
        "metrics": {} if rollout.reward is None else {"task_success": rollout.reward},
    }
    check(out)
    return out


def check(document: dict[str, Any]) -> None:
    """Raise `TraceError` with the first problems of a document, or `ConfigError` if jsonschema is missing."""
    problems = [f"{error.json_path}: {error.message}" for error in _validator().iter_errors(document)]
    if not problems:
        ids = Counter(event["id"] for event in document["events"])
        problems = [f"event id {name!r} occurs {number} times" for name, number in ids.items() if number > 1]
        ends = ((edge[end], edge) for edge in document["edges"] for end in ("src", "dst"))
        problems += [
            f"a {edge['type']} edge names event {name!r}, which does not exist"
            for name, edge in ends
            if name not in ids
        ]
    if problems:
        more = f" (and {len(problems) - 3} more)" if len(problems) > 3 else ""
        raise TraceError(f"Not an orchestration trace: {'; '.join(problems[:3])}{more}.")


def _event(rollout: TracedRollout, event: GraphEvent) -> Json:
    graph = rollout.graph
    attributes = dict(event.attributes)
    call = graph.calls.get(event.call_id or "")
    roles = {agent.id: agent.role for agent in graph.agents}
    tokens = (
        attributes.pop("x_token_ref", None) if call is None else _token_ref(call, rollout.policy_of(call))
    )
    of_call = event.kind == "llm_call"
    told_s = attributes.pop("x_duration_s", None)
    told_id = attributes.pop("x_call_id", None)
    optional = {
        "role": roles.get(event.agent_id or ""),
        "from": event.agent_id if event.kind in ("message", "return") else None,
        "to": event.target_agent_id,
        "tool": attributes.get("tool"),
        "content_ref": attributes.get("content_hash"),
        "trusted": attributes.get("trusted"),
        "x_event": event.kind if event.kind in _OURS or event.kind not in KINDS else None,
        "x_call_id": None if of_call else event.call_id or told_id,
        "x_token_ref": tokens if of_call else None,
        "x_duration_s": call.timings.get("total_s") if call is not None and of_call else told_s,
        "x_attributes": attributes or None,
        "x_evidence": event.evidence,
        "x_confidence": event.confidence,
        "x_source": None if event.source == "proxy" else event.source,
        "x_span_id": event.span_id,
    }
    kind = _OURS.get(event.kind, event.kind if event.kind in KINDS else "orchestrator_decision")
    out: Json = {"id": event.id, "t": event.t, "type": kind, "agent": event.agent_id or NOBODY}
    return out | {name: value for name, value in optional.items() if value is not None}


def _token_ref(call: CallFacts, policy: str) -> Json:
    """Return where the call's tokens are in the store, and how many there are."""
    return {
        "prompt_tokens": call.usage.get("told_prompt_tokens", call.prompt_len),
        "completion_tokens": call.usage.get("told_completion_tokens", call.completion_len) or 0,
        "prompt_segment": call.prompt_segment,
        "completion_segment": call.completion_segment,
        "policy": policy,
        "versions": [[span.start, span.end, span.version] for span in call.versions],
    }


def _edge(edge: Edge) -> Json:
    return {"src": edge.source, "dst": edge.target, "type": edge.kind}


def _facts(graph: Graph) -> Json:
    names = ("policy", "seed", "status", "stop_reason", "verdict", "created_at", "ended_at")
    return {name: getattr(graph.rollout, name) for name in names}


def _topology(agents: tuple[AgentFacts, ...]) -> str:
    """Derive the topology from the spawns: a single agent, delegation, or delegates that delegate."""
    parents = {agent.id: agent.parent_agent_id for agent in agents}
    spawned = [agent.id for agent in agents if agent.parent_agent_id is not None]
    if len(agents) <= 1:
        return "harness"
    if len(agents) - len(spawned) > 1:
        return "unknown"
    return "hierarchical" if any(parents.get(parents[name] or "") for name in spawned) else "centralized"


def _key(reward: RewardFacts) -> str:
    plain = reward.unit == "rollout" and reward.channel.partition("/")[0] not in _UNITS
    return reward.channel if plain else f"{reward.unit}/{reward.target}/{reward.channel}"


def _costs(events: list[Json]) -> Json:
    """Compute costs from the events alone, so that an imported trace has the same costs."""
    used = [event["x_token_ref"] for event in events if event.get("x_token_ref")]
    prompt, completion = (sum(ref[name] for ref in used) for name in ("prompt_tokens", "completion_tokens"))
    ends = [event["t"] + event.get("x_duration_s", 0.0) for event in events]
    return {
        "tokens": prompt + completion,
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "wall_clock_s": max(ends) - events[0]["t"],
        "llm_calls": sum(event.get("x_event") == "llm_call" for event in events),
        "tool_calls": sum(event["type"] == "tool_call" for event in events),
        "messages": sum(event["type"] == "message" for event in events),
    }


@cache
def _validator() -> Any:
    try:
        jsonschema = importlib.import_module("jsonschema")
    except ModuleNotFoundError:
        raise needed("jsonschema", "mas") from None
    return jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text(encoding="utf-8")))
