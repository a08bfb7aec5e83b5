"""ATIF v1.8: a document per rollout, with the exact prompt ids, completion ids and logprobs.

The agent that appeared first is the root. Agents that it spawned are its `subagent_trajectories`, and the
result of the tool call that spawned an agent refers to it. Calls that belong to no agent (titles,
classifiers) form a separate trajectory, `side calls`. What a request added becomes steps before the answer;
tool results are in the observation of the step that called the tool. `extra.call` of a step holds what ATIF
has no field for (branches, versions, sampling, status), so that an import can restore the same calls. The
model of an agent is the first policy that it called; a step that another policy answered names that one.
Events other than spawns, and edges, are left out.
"""

from collections import OrderedDict
from collections.abc import Container, Iterable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

from harnessgym.errors import TraceError
from harnessgym.message import Message
from harnessgym.store.facts import AgentFacts, CallFacts
from harnessgym.traces.atif import schema
from harnessgym.traces.atif.content import content_of, tool_calls_of
from harnessgym.traces.atomic_files import write_documents
from harnessgym.traces.export import TellsPolicies, TracedRollout
from harnessgym.traces.transcript import Exchange, tools_to_wire

Json = dict[str, Any]
SIDE = "side calls"
"""Name of the trajectory of calls that belong to no agent."""


class Atif:
    """One document per rollout."""

    tells_policies: ClassVar[TellsPolicies] = "calls"

    def write(self, rollouts: Iterable[TracedRollout], out: Path) -> int:
        """Write the documents. Raises `TraceError` for a rollout without calls."""
        return write_documents(rollouts, out, document)


def document(rollout: TracedRollout) -> Json:
    """Return a rollout as an ATIF document. Raises `TraceError` if it has no calls: ATIF needs a step."""
    voices: OrderedDict[str, list[Exchange]] = OrderedDict((agent.id, []) for agent in rollout.graph.agents)
    for exchange in rollout.transcript.exchanges:
        voices.setdefault(exchange.call.agent_id or f"{exchange.call.session_id}:side", []).append(exchange)
    agents = {agent.id: agent for agent in rollout.graph.agents}
    voices = OrderedDict((name, exchanges) for name, exchanges in voices.items() if exchanges)
    made = {
        name: _trajectory(rollout, name, agents.get(name), exchanges, voices)
        for name, exchanges in voices.items()
    }
    if not made:
        raise TraceError(f"Rollout {rollout.id} has no calls, but an ATIF document needs at least one step.")
    # An agent whose parent has no trajectory, e.g. because it made no calls, goes below the root.
    root = next(iter(made.values()))
    for name, trajectory in made.items():
        parent = made.get(agents[name].parent_agent_id or "") if name in agents else None
        above = root if parent is None or parent is trajectory else parent
        if trajectory is not root:
            above.subagent_trajectories = [*(above.subagent_trajectories or ()), trajectory]
    root.extra = {"rollout": _facts(rollout), "rewards": [asdict(reward) for reward in rollout.graph.rewards]}
    return root.model_dump(mode="json", exclude_none=True)


def _facts(rollout: TracedRollout) -> Json:
    names = (
        "policy",
        "task_set",
        "task_key",
        "seed",
        "status",
        "stop_reason",
        "verdict",
        "created_at",
        "ended_at",
    )
    return {name: getattr(rollout.facts, name) for name in names}


def _trajectory(
    rollout: TracedRollout,
    name: str,
    agent: AgentFacts | None,
    exchanges: list[Exchange],
    speakers: Container[str | None],
) -> schema.AtifTrajectory:
    model = rollout.policy_of(exchanges[0].call)
    steps = _Steps(rollout, name, model, speakers)
    tools = tools_to_wire(exchanges[0].tools)
    for exchange in exchanges:
        steps.add(exchange, tools)
    described = schema.AtifAgent(
        name=SIDE if agent is None else agent.name,
        version="unknown",
        model_name=model,
        tool_definitions=tools or None,
        extra={"harness": rollout.facts.harness, **({} if agent is None else _about(rollout, agent))},
    )
    counted = schema.FinalMetrics(
        total_prompt_tokens=sum(_counts(item.call)[0] for item in exchanges),
        total_completion_tokens=sum(_counts(item.call)[1] or 0 for item in exchanges),
        total_steps=len(steps.made),
    )
    return schema.AtifTrajectory(
        session_id=rollout.id, trajectory_id=name, agent=described, steps=steps.made, final_metrics=counted
    )  # fmt: skip


def _about(rollout: TracedRollout, agent: AgentFacts) -> Json:
    """Return what ATIF has no field for, and the events that spawned the agent."""
    spawned = [event for event in rollout.graph.of_kind("spawn") if event.target_agent_id == agent.id]
    names = ("id", "t", "agent_id", "attributes", "evidence", "confidence", "source")
    out: Json = {"role": agent.role, "parent": agent.parent_agent_id, "evidence": agent.evidence}
    return {**out, "spawned": [{name: getattr(event, name) for name in names} for event in spawned]}


@dataclass
class _Steps:
    """The steps of one agent."""

    rollout: TracedRollout
    agent_id: str
    model: str
    """The agent's default policy, which steps need not name."""
    speakers: Container[str | None]
    """Ids of the agents that have a trajectory."""
    made: list[schema.AtifStep] = field(default_factory=list)
    _called: dict[str, schema.AtifStep] = field(default_factory=dict)
    """Maps the id of a tool call to the latest step that made it."""

    def add(self, exchange: Exchange, tools: list[Json]) -> None:
        """Add what a request added, then its answer. `tools` are the agent's default tools."""
        heard = [self._heard(message) for message in exchange.new]
        call = exchange.call
        answer = exchange.answer or Message("assistant")
        about = _call(exchange, heard)
        if tools_to_wire(exchange.tools) != tools:
            about["tools"] = tools_to_wire(exchange.tools)
        asked = self.rollout.policy_of(call)
        step = self._step(
            "agent",
            content_of(answer),
            model_name=None if asked == self.model else asked,
            timestamp=datetime.fromtimestamp(call.created_at, UTC).isoformat(),
            reasoning_content=answer.reasoning or None,
            tool_calls=tool_calls_of(answer),
            metrics=_metrics(self.rollout, call),
            llm_call_count=1,
            extra={"call": about},
        )
        self._called.update({made.id: step for made in answer.tool_calls})

    def _step(self, source: str, message: schema.Content, **fields: Any) -> schema.AtifStep:
        step = schema.AtifStep.model_validate(
            {"step_id": len(self.made) + 1, "source": source, "message": message, **fields}
        )
        self.made.append(step)
        return step

    def _heard(self, message: Message) -> list[int]:
        """Add a message of a request. Returns its position: [step], or [step, result]."""
        extra = None if message.name is None else {"name": message.name}
        if message.role == "tool":
            return self._result(message, extra)
        if message.role == "assistant":
            calls = tool_calls_of(message)
            reasoning = message.reasoning or None
            step = self._step(
                "agent", content_of(message), reasoning_content=reasoning, tool_calls=calls, extra=extra
            )
            self._called.update({made.id: step for made in message.tool_calls})
        else:
            step = self._step(message.role, content_of(message), extra=extra)
        return [step.step_id]

    def _result(self, message: Message, extra: Json | None) -> list[int]:
        called = message.tool_call_id or ""
        step = self._called.get(called)
        if step is None:
            step = self._step("user", "", observation=schema.AtifObservation(results=[]))
            extra = {**(extra or {}), "tool_call_id": called}
        if message.is_error:
            extra = {**(extra or {}), "is_error": True}
        result = schema.AtifResult(
            source_call_id=called if called in self._called else None,
            content=content_of(message),
            subagent_trajectory_ref=self._spawned(called) or None,
            extra=extra,
        )
        step.observation = step.observation or schema.AtifObservation(results=[])
        step.observation.results.append(result)
        return [step.step_id, len(step.observation.results) - 1]

    def _spawned(self, tool_call_id: str) -> list[schema.SubagentRef]:
        """Return references to the agents that a tool call started and that have a trajectory."""
        started = dict.fromkeys(
            event.target_agent_id
            for event in self.rollout.graph.of_kind("spawn")
            if event.agent_id == self.agent_id and event.attributes.get("tool_call_id") == tool_call_id
        )
        return [
            schema.SubagentRef(trajectory_id=name, session_id=self.rollout.id)
            for name in started
            if name in self.speakers
        ]


def _counts(call: CallFacts) -> tuple[int, int | None]:
    """Return prompt and completion tokens; for an import without token ids, the reported counts."""
    completion_tokens = call.usage.get("told_completion_tokens", call.completion_len)
    return call.usage.get("told_prompt_tokens", call.prompt_len), completion_tokens


def _metrics(rollout: TracedRollout, call: CallFacts) -> schema.Metrics:
    sampled = rollout.segments.get(call.completion_segment or "")
    text_only = sampled is not None and sampled.logprobs is None and not len(sampled.ids)
    prompt, completion = _counts(call)
    return schema.Metrics(
        prompt_tokens=prompt,
        completion_tokens=completion,
        cached_tokens=call.usage.get("cached_tokens"),
        prompt_token_ids=rollout.path(call.prompt_segment) or None,
        completion_token_ids=None if sampled is None or text_only else list(sampled.ids),
        logprobs=None if sampled is None or sampled.logprobs is None else list(sampled.logprobs),
    )


def _call(exchange: Exchange, heard: list[list[int]]) -> Json:
    """Return what an import needs to restore the same call."""
    call = exchange.call
    names = (
        "id",
        "ordinal",
        "kind",
        "side_call",
        "status",
        "finish_reason",
        "break_class",
        "break_detail",
        "error",
    )
    call_fields = {name: getattr(call, name) for name in names}
    joined = {"session": call.session_id, "parent": call.parent_call_id, "continues": exchange.continues}
    spans = [[span.start, span.end, span.version] for span in call.versions]
    other_fields = {
        "shared": exchange.shared,
        "heard": heard,
        "versions": spans,
        "sampling": dict(call.sampling),
    }
    out = {
        **call_fields,
        **joined,
        **other_fields,
        "timings": dict(call.timings),
        "answered": exchange.answer is not None,
    }
    return {name: value for name, value in out.items() if value is not None}
