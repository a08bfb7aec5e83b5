"""OpenTelemetry spans in the GenAI semantic conventions, as OTLP/JSON with one line per rollout.

A collector's `otlpjsonfile` receiver reads the file, and an OTLP/HTTP endpoint accepts each line.

A rollout is a trace. It has `invoke_agent` spans for the rollout and each agent. Inside these are `chat`
spans for calls, whose model is the policy, and `execute_tool` spans for tool calls. Other events are span
events of their agent. Rewards are `gen_ai.evaluation.result` events of the rollout. Edges other than temporal
ones are links of the span that they lead to. Token ids are left out: `harnessgym.*` attributes name the call
and the segments that have them.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

from harnessgym.message import Message
from harnessgym.store.facts import AgentFacts
from harnessgym.traces.atomic_files import dumped, write_lines
from harnessgym.traces.export import TellsPolicies, TracedRollout
from harnessgym.traces.graph import Edge, GraphEvent
from harnessgym.traces.transcript import Exchange, tools_to_wire

Json = dict[str, Any]
_INTERNAL = 1
_CLIENT = 3
_ERROR = 2
_SPANS = ("llm_call", "tool_call", "tool_result")
"""Kinds of events that are spans or end one."""
_PROVIDER = "harnessgym"


class Otel:
    """One line per rollout."""

    tells_policies: ClassVar[TellsPolicies] = "calls"

    def write(self, rollouts: Iterable[TracedRollout], out: Path) -> int:
        """Write the lines."""
        return write_lines(rollouts, out, lambda rollout: [request(rollout)])


def request(rollout: TracedRollout) -> Json:
    """Return a rollout as an `ExportTraceServiceRequest`."""
    scope = {"name": "harnessgym", "version": version("harnessgym-rl")}
    resource = {
        "attributes": _attributes(
            {"service.name": rollout.facts.harness, "harnessgym.run.id": rollout.facts.run_id}
        )
    }
    spans = list(_Spans.of(rollout).all())
    return {"resourceSpans": [{"resource": resource, "scopeSpans": [{"scope": scope, "spans": spans}]}]}


@dataclass
class _Spans:
    """The spans of one rollout."""

    rollout: TracedRollout
    said: Mapping[str, Exchange]
    results: Mapping[tuple[str | None, str], GraphEvent]
    """Tool results by agent and id of the tool call."""
    edges: Mapping[str, list[Edge]]
    """Edges by the event that they lead to, without temporal ones."""

    @classmethod
    def of(cls, rollout: TracedRollout) -> "_Spans":
        exchanges = {exchange.call.id: exchange for exchange in rollout.transcript.exchanges}
        results = {
            (event.agent_id, str(event.attributes.get("tool_call_id"))): event
            for event in rollout.graph.of_kind("tool_result")
        }
        edges: dict[str, list[Edge]] = {}
        for edge in rollout.graph.edges:
            if edge.kind != "temporal":
                edges.setdefault(edge.target, []).append(edge)
        return cls(rollout, exchanges, results, edges)

    def all(self) -> Iterator[Json]:
        """Yield the spans of the rollout, its agents, calls and tool calls."""
        yield self._whole()
        for agent in self.rollout.graph.agents:
            yield self._agent(agent)
        for exchange in self.said.values():
            yield self._call(exchange)
        for event in self.rollout.graph.of_kind("tool_call"):
            yield self._tool(event)

    def _whole(self) -> Json:
        facts = self.rollout.facts
        graph = self.rollout.graph
        start, end = self._times(None)
        attributes = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.provider.name": _PROVIDER,
            "gen_ai.agent.name": facts.harness,
            "gen_ai.conversation.id": facts.id,
            "harnessgym.rollout.id": facts.id,
            "harnessgym.group.id": facts.group_id,
            "harnessgym.task": f"{facts.task_set}/{facts.task_key}",
            "harnessgym.stop_reason": facts.stop_reason,
            "harnessgym.verdict": facts.verdict,
        }
        scores = [
            _span_event("gen_ai.evaluation.result", end, {
                "gen_ai.evaluation.name": item.channel,
                "gen_ai.evaluation.score.value": item.value,
                "gen_ai.evaluation.explanation": item.detail,
                "harnessgym.reward.unit": item.unit,
                "harnessgym.reward.target": item.target,
            })
            for item in graph.rewards
        ]  # fmt: skip
        loose = [
            self._happened(event)
            for event in graph.events
            if event.agent_id is None and event.kind not in _SPANS
        ]
        failed = facts.stop_reason if facts.status == "failed" else None
        return self._span(
            facts.id, None, f"invoke_agent {facts.harness}", start, end, attributes, [*loose, *scores], failed
        )

    def _agent(self, agent: AgentFacts) -> Json:
        start, end = self._times(agent.id)
        attributes = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.provider.name": _PROVIDER,
            "gen_ai.agent.id": agent.id,
            "gen_ai.agent.name": agent.name,
            "gen_ai.agent.description": agent.role,
            "gen_ai.conversation.id": self.rollout.id,
        }
        own = [
            event
            for event in self.rollout.graph.events
            if event.agent_id == agent.id and event.kind not in _SPANS
        ]
        above = agent.parent_agent_id or self.rollout.id
        happened = [self._happened(event) for event in own]
        return self._span(agent.id, above, f"invoke_agent {agent.name}", start, end, attributes, happened)

    def _call(self, exchange: Exchange) -> Json:
        call = exchange.call
        model = self.rollout.policy_of(exchange.call)
        asked = self.rollout.transcript.messages_through(call.id)
        heard = [message for message, call_id in asked if call_id != call.id]
        prompt_tokens = call.usage.get("told_prompt_tokens", call.prompt_len)
        attributes = {
            "gen_ai.operation.name": "chat" if call.protocol != "completions" else "text_completion",
            "gen_ai.provider.name": _PROVIDER,
            "gen_ai.request.model": model,
            "gen_ai.response.model": model,
            "gen_ai.response.id": call.id,
            "gen_ai.response.finish_reasons": [call.finish_reason] if call.finish_reason else None,
            "gen_ai.request.temperature": call.sampling.get("temperature"),
            "gen_ai.request.top_p": call.sampling.get("top_p"),
            "gen_ai.request.max_tokens": call.sampling.get("max_tokens"),
            "gen_ai.usage.input_tokens": prompt_tokens,
            "gen_ai.usage.output_tokens": call.usage.get("told_completion_tokens", call.completion_len),
            "gen_ai.agent.id": call.agent_id,
            "gen_ai.agent.name": exchange.agent or None,
            "gen_ai.conversation.id": self.rollout.id,
            "gen_ai.input.messages": dumped([_spoken(message) for message in heard]),
            "gen_ai.output.messages": dumped([_output(exchange)]) if exchange.answer else None,
            "gen_ai.tool.definitions": dumped(tools_to_wire(exchange.tools)) if exchange.tools else None,
            "harnessgym.call.kind": call.kind,
            "harnessgym.call.status": call.status,
            "harnessgym.call.prompt_segment": call.prompt_segment,
            "harnessgym.call.completion_segment": call.completion_segment,
            "harnessgym.call.versions": dumped(
                [[span.start, span.end, span.version] for span in call.versions]
            ),
            "harnessgym.call.break": call.break_class,
        }
        start = call.created_at
        above = call.agent_id or self.rollout.id
        end = start + call.timings.get("total_s", 0.0)
        name = f"chat {model}"
        return self._span(call.id, above, name, start, end, attributes, [], call.error, kind=_CLIENT)

    def _tool(self, event: GraphEvent) -> Json:
        called = str(event.attributes.get("tool_call_id"))
        result = self.results.get((event.agent_id, called))
        tool = str(event.attributes.get("tool", ""))
        attributes = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": tool,
            "gen_ai.tool.type": "function",
            "gen_ai.tool.call.id": event.attributes.get("tool_call_id"),
            "gen_ai.tool.call.arguments": event.attributes.get("arguments"),
            "gen_ai.agent.id": event.agent_id,
            "gen_ai.conversation.id": self.rollout.id,
            "harnessgym.tool.answered": result is not None,
        }
        end = event.t if result is None else max(event.t, result.t)
        failed = "The tool failed." if result is not None and result.attributes.get("is_error") else None
        above = event.agent_id or self.rollout.id
        return self._span(event.id, above, f"execute_tool {tool}", event.t, end, attributes, [], failed)

    def _span(
        self, row_id: str, above: str | None, name: str, start: float, end: float, attributes: Json,
        happened: list[Json], error: str | None = None, kind: int = _INTERNAL,
    ) -> Json:  # fmt: skip
        linked = [
            {"traceId": _hex(self.rollout.id, 16), "spanId": _hex(edge.source, 8), "attributes": _attributes({
                "harnessgym.edge.kind": edge.kind,
                "harnessgym.edge.evidence": edge.evidence,
                "harnessgym.edge.confidence": edge.confidence,
            })}
            for edge in self.edges.get(row_id, ())
        ]  # fmt: skip
        out: Json = {
            "traceId": _hex(self.rollout.id, 16),
            "spanId": _hex(row_id, 8),
            "name": name,
            "kind": kind,
            "startTimeUnixNano": _nanoseconds(start),
            "endTimeUnixNano": _nanoseconds(end),
            "attributes": _attributes(attributes if error is None else {**attributes, "error.type": "error"}),
            "events": happened,
            "links": linked,
            "status": {} if error is None else {"code": _ERROR, "message": error},
        }
        return out if above is None else {**out, "parentSpanId": _hex(above, 8)}

    def _happened(self, event: GraphEvent) -> Json:
        attributes = {f"harnessgym.event.{name}": value for name, value in event.attributes.items()}
        known = {"harnessgym.event.id": event.id, "harnessgym.event.target_agent": event.target_agent_id}
        judged = {
            "harnessgym.event.evidence": event.evidence,
            "harnessgym.event.confidence": event.confidence,
        }
        return _span_event(f"harnessgym.{event.kind}", event.t, {**known, **judged, **attributes})

    def _times(self, agent_id: str | None) -> tuple[float, float]:
        """Return when an agent's first event began and its last one ended; of the whole rollout for None."""
        events = [
            event for event in self.rollout.graph.events if agent_id is None or event.agent_id == agent_id
        ]
        calls = [
            item.call for item in self.said.values() if agent_id is None or item.call.agent_id == agent_id
        ]
        ends = [
            *(event.t for event in events),
            *(call.created_at + call.timings.get("total_s", 0.0) for call in calls),
        ]
        start = self.rollout.facts.created_at
        return min(ends, default=start) if not events else events[0].t, max(ends, default=start)


def _spoken(message: Message) -> Json:
    """Return a message in the conventions' form: parts of text, reasoning, tool calls and responses."""
    parts: list[Json] = [{"type": "reasoning", "content": message.reasoning}] if message.reasoning else []
    if message.role == "tool":
        parts.append(
            {"type": "tool_call_response", "id": message.tool_call_id, "response": message.shown_text}
        )
    elif message.content:
        parts.append({"type": "text", "content": message.content})
    parts += [{"type": "uri", "modality": "image", "uri": url} for url in message.images]
    parts += [
        {"type": "tool_call", "id": call.id, "name": call.name, "arguments": call.parsed}
        for call in message.tool_calls
    ]
    return {"role": message.role, "parts": parts}


def _output(exchange: Exchange) -> Json:
    assert exchange.answer is not None
    reason = "tool_call" if exchange.answer.tool_calls else exchange.call.finish_reason or "stop"
    return {**_spoken(exchange.answer), "finish_reason": reason}


def _span_event(name: str, t: float, attributes: Json) -> Json:
    return {"name": name, "timeUnixNano": _nanoseconds(t), "attributes": _attributes(attributes)}


def _attributes(values: Json) -> list[Json]:
    return [{"key": name, "value": _value(value)} for name, value in values.items() if value is not None]


def _value(value: Any) -> Json:
    match value:
        case bool():
            return {"boolValue": value}
        case int():
            return {"intValue": str(value)}
        case float():
            return {"doubleValue": value}
        case str():
            return {"stringValue": value}
        case list():
            return {"arrayValue": {"values": [_value(item) for item in value]}}
    return {"stringValue": dumped(value)}


def _nanoseconds(t: float) -> str:
    # A float of Unix seconds resolves about a quarter of a microsecond. Finer digits would be noise.
    return str(round(t * 1e6) * 1000)


def _hex(row_id: str, size: int) -> str:
    """Return the id of a trace or span, derived from the row's id so that all exports agree."""
    return blake2b(row_id.encode(), digest_size=size).hexdigest()
