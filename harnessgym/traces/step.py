"""Steps of a rollout, and patterns that select steps."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Self, cast, get_args

from pydantic import Field, model_validator

from harnessgym.config import Config
from harnessgym.message import ToolCall, canonical_json
from harnessgym.traces.graph import Graph, GraphEvent

StepKind = Literal[
    "aggregate", "despawn", "human_intervention", "llm_call", "message", "orchestrator_decision", "return",
    "safety_event", "spawn", "tool_call", "tool_result",
]  # fmt: skip
WHOLE = "*"
"""Used as an argument's name, stands for the text of all arguments."""


@dataclass(frozen=True, slots=True)
class RolloutStep:
    """One thing that happened in a rollout."""

    id: str
    """Id of the call for an `llm_call`, else of the event."""
    kind: StepKind
    t: float
    """Unix seconds."""
    agent_id: str | None = None
    target_agent_id: str | None = None
    tokens: int = 0
    """Sampled tokens of an `llm_call`."""
    tool: str = ""
    tool_call_id: str = ""
    arguments: str = ""
    """JSON text of an object, as the policy wrote it."""

    def argument(self, name: str) -> str | None:
        """Return the text of an argument; None if there is no such argument.

        If the arguments are not a JSON object, returns their whole text.
        """
        # Returning None instead would let a policy evade a contract by writing malformed arguments.
        parsed = ToolCall("", self.tool, self.arguments).parsed
        if name == WHOLE or not isinstance(parsed, dict):
            return self.arguments
        value = parsed.get(name)
        return value if value is None or isinstance(value, str) else canonical_json(value)


class Pattern(Config):
    """Selects the steps that meet every condition that is set."""

    step: StepKind = "tool_call"
    tool: str = ""
    """Regular expression for the tool's whole name."""
    arguments: Mapping[str, str] = Field(default_factory=dict)
    """Regular expressions by argument name, each searched in the argument's text. `*` is the text of all
    arguments."""

    @model_validator(mode="after")
    def _readable(self) -> Self:
        for pattern in (self.tool, *self.arguments.values()):
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"{pattern!r} is no regular expression: {error}") from error
        return self

    def meets(self, step: RolloutStep) -> bool:
        """Return whether a step meets all conditions."""
        if step.kind != self.step or (self.tool and re.fullmatch(self.tool, step.tool) is None):
            return False
        texts = ((step.argument(name), pattern) for name, pattern in self.arguments.items())
        return all(text is not None and re.search(pattern, text) is not None for text, pattern in texts)

    def __str__(self) -> str:
        tool = f" of {self.tool}" if self.tool else ""
        return f"{self.step}{tool}" + (f" with {dict(self.arguments)}" if self.arguments else "")


_KINDS = frozenset(get_args(StepKind))
_SIDE = ("side", "count")
"""Kinds of calls in which the policy does not act. They are not steps."""

SELF_REPORTED = "otlp"
"""Source of events that an instrumented harness reports about itself. They are not trusted: any process in
the sandbox can report anything."""


def steps_of(graph: Graph, *, self_reported: bool = False) -> list[RolloutStep]:
    """Return a rollout's steps in order of time. `self_reported` includes those that only spans report.

    Side calls are not steps. Of steps at the same time, a call comes first.
    """
    side = {call.id for call in graph.calls.values() if call.kind in _SIDE}
    seen = (event for event in graph.events if self_reported or event.source != SELF_REPORTED)
    steps = [_step(graph, event) for event in seen if event.kind in _KINDS and event.id not in side]
    return sorted(steps, key=lambda step: (step.t, step.kind != "llm_call"))


def _step(graph: Graph, event: GraphEvent) -> RolloutStep:
    attributes = event.attributes
    call = graph.calls.get(event.id)
    arguments = attributes.get("arguments") or ""
    return RolloutStep(
        id=event.id,
        kind=cast("StepKind", event.kind),
        t=event.t,
        agent_id=event.agent_id,
        target_agent_id=event.target_agent_id,
        tokens=0 if call is None else call.completion_len or 0,
        tool=str(attributes.get("tool") or ""),
        tool_call_id=str(attributes.get("tool_call_id") or ""),
        arguments=arguments if isinstance(arguments, str) else canonical_json(arguments),
    )
