"""Orchestration traces of the awesome-llm-mas-rl schema: agents, events, edges and rewards.

A trace has no tokens and no texts, so no calls are written. A decision with `x_event: "llm_call"` becomes an
event of that kind with its token counts. A temporal edge between successive calls of an agent is stored only
if it carries evidence: readers derive the others.
"""

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

from sqlalchemy import Connection

from harnessgym.store.import_rows import SOURCE, ImportedFacts, ImportRows
from harnessgym.traces.exports.mas import NOBODY, check
from harnessgym.traces.import_ import ImportedRollout

Json = dict[str, Any]
_UNITS = ("token", "turn", "message", "tool_call", "agent", "rollout", "team")
_IN_ATTRIBUTES = ("x_token_ref", "x_duration_s", "x_call_id")
_READ = frozenset({
    "id", "t", "type", "agent", "role", "from", "to", "tool", "content_ref", "trusted", "x_event",
    "x_attributes", "x_evidence", "x_confidence", "x_source", "x_span_id", "x_inferred_edges", "x_rollout",
    "x_agents", *_IN_ATTRIBUTES,
})  # fmt: skip
"""Members of an event that have a column or are handled here. Others become attributes."""


class MasImport:
    """One document is one rollout."""

    def read(self, conn: Connection, run_id: str, document: Json) -> ImportedRollout:
        """Write a trace.

        Raises `TraceError` if it violates the schema, and `ConfigError` if jsonschema is missing.
        """
        check(document)
        first = document["events"][0]
        task_set, slash, key = document["task_id"].partition("/")
        task = (
            {"task_set": task_set, "task_key": key}
            if slash
            else {"task_set": SOURCE, "task_key": document["task_id"]}
        )
        rollout_facts = {"harness": document.get("system", ""), **task, **first.get("x_rollout", {})}
        facts = ImportedFacts(id=document["trace_id"], **rollout_facts)
        rows = ImportRows(conn, run_id, facts)
        _add_agents(rows, document["events"], first.get("x_agents", []))
        unsaid = "proxy" if "x_rollout" in first else SOURCE
        for event in document["events"]:
            _add_event(rows, event, unsaid)
        for agent in first.get("x_agents", []):
            if rows.known(agent["spawn_event_id"]):
                rows.spawned_by(rows.name(agent["id"]), rows.name(agent["spawn_event_id"]))
        _add_edges(rows, document)
        for name, value in document["rewards"].items():
            unit, _, rest = name.partition("/")
            if unit in _UNITS and "/" in rest:
                target, _, channel = rest.partition("/")
                rows.reward(unit, target, channel, value)
            else:
                rows.reward("rollout", "", name, value)
        derived = {"topology", "costs"} | (
            {"metrics"} if set(document.get("metrics", {})) <= {"task_success"} else set()
        )
        known = {"trace_id", "task_id", "system", "events", "edges", "rewards", *derived}
        return ImportedRollout(rows.rollout_id, {name: 1 for name in document if name not in known})


def _add_agents(rows: ImportRows, events: Iterable[Json], agents: list[Json]) -> None:
    """Insert the agents that the trace describes, then any other that its events name."""
    for at, agent in enumerate(agents):
        rows.agent(
            agent["id"], agent["name"], rows.session(agent["session_id"]) if agent["session_id"] else None,
            at * 1e-6, role=agent["role"], parent_agent_id=rows.known(agent["parent_agent_id"]),
            evidence=agent["evidence"],
        )  # fmt: skip
    for event in events:
        for name in (event["agent"], event.get("from"), event.get("to")):
            if name is not None and name != NOBODY and rows.known(name) is None:
                role = event.get("role") if name == event["agent"] else None
                rows.agent(name, name, None, event["t"], role=role)


def _add_event(rows: ImportRows, event: Json, unsaid: str) -> None:
    """Insert an event. `unsaid` is the source if the event names none."""
    attributes = {name: event[name] for name in event if name not in _READ}
    attributes |= {name: event[name] for name in ("tool", "trusted") if name in event}
    attributes |= {"content_hash": event["content_ref"]} if "content_ref" in event else {}
    attributes |= {name: event[name] for name in _IN_ATTRIBUTES if name in event}
    rows.event(
        event["id"],
        str(event.get("x_event", event["type"])),
        event["t"],
        attributes | event.get("x_attributes", {}),
        agent_id=rows.known(event["agent"]),
        target_agent_id=rows.known(event.get("to")),
        evidence=event.get("x_evidence"),
        confidence=event.get("x_confidence"),
        source=event.get("x_source", unsaid),
        span_id=event.get("x_span_id"),
    )


def _add_edges(rows: ImportRows, document: Json) -> None:
    inferred = {
        (inferred_edge["src"], event["id"], inferred_edge["type"]): (
            inferred_edge["evidence"],
            inferred_edge["confidence"],
        )
        for event in document["events"]
        for inferred_edge in event.get("x_inferred_edges", ())
    }
    derived = _derived(document["events"])
    for edge in document["edges"]:
        evidence, confidence = inferred.get((edge["src"], edge["dst"], edge["type"]), (None, None))
        plain = evidence is None and confidence is None
        if not (plain and edge["type"] == "temporal" and (edge["src"], edge["dst"]) in derived):
            rows.edge(edge["type"], rows.name(edge["src"]), rows.name(edge["dst"]), evidence, confidence)


def _derived(events: list[Json]) -> set[tuple[str, str]]:
    """Return the pairs of successive calls of each agent."""
    by_agent: dict[str, list[str]] = {}
    for event in sorted(events, key=lambda one: (one["t"], one["id"])):
        if event.get("x_event") == "llm_call" and event["agent"] != NOBODY:
            by_agent.setdefault(event["agent"], []).append(event["id"])
    return {pair for event_ids in by_agent.values() for pair in pairwise(event_ids)}
