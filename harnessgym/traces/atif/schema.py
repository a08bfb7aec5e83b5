"""Models of ATIF v1.8, the Agent Trajectory Interchange Format of Harbor.

They allow no other fields and enforce the format's rules.

Source: Harbor's RFC 0001 and `harbor.models.trajectories`.
"""

from datetime import datetime
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

SchemaVersion = Literal[
    "ATIF-v1.0", "ATIF-v1.1", "ATIF-v1.2", "ATIF-v1.3", "ATIF-v1.4", "ATIF-v1.5", "ATIF-v1.6", "ATIF-v1.7",
    "ATIF-v1.8",
]  # fmt: skip
_AGENT_ONLY = ("model_name", "reasoning_effort", "reasoning_content", "tool_calls", "metrics")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Media(_Strict):
    """The location of an image or recording."""

    media_type: str
    path: str
    duration_sec: float | None = None


class ContentPart(_Strict):
    """One part of a message that is not only text."""

    type: Literal["text", "image", "audio"]
    text: str | None = None
    source: Media | None = None

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if (self.text is None) == (self.type == "text") or (self.source is None) != (self.type == "text"):
            raise ValueError("a text part has `text`, any other has `source`, and none has both")
        return self


Content = str | list[ContentPart]


class SubagentRef(_Strict):
    """Reference to a delegated trajectory: embedded under its id, or in a file."""

    trajectory_id: str | None = None
    session_id: str | None = None
    trajectory_path: str | None = None
    extra: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _resolves(self) -> Self:
        if self.trajectory_id is None and self.trajectory_path is None:
            raise ValueError("a reference to a sub-agent needs `trajectory_id` or `trajectory_path`")
        return self


class AtifToolCall(_Strict):
    """One call of a tool."""

    tool_call_id: str
    function_name: str
    arguments: dict[str, Any]
    extra: dict[str, Any] | None = None


class AtifResult(_Strict):
    """The result of one tool call or of something else."""

    source_call_id: str | None = None
    content: Content | None = None
    subagent_trajectory_ref: list[SubagentRef] | None = None
    extra: dict[str, Any] | None = None


class AtifObservation(_Strict):
    """All results of a step."""

    results: list[AtifResult]


class Metrics(_Strict):
    """Token data of one step."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    cost_usd: float | None = None
    prompt_token_ids: list[int] | None = None
    completion_token_ids: list[int] | None = None
    logprobs: list[float] | None = None
    extra: dict[str, Any] | None = None


class AtifStep(_Strict):
    """One message, or one turn of the agent with its results."""

    step_id: int = Field(ge=1)
    timestamp: str | None = None
    source: Literal["system", "user", "agent"]
    model_name: str | None = None
    reasoning_effort: str | float | None = None
    message: Content
    reasoning_content: str | None = None
    tool_calls: list[AtifToolCall] | None = None
    observation: AtifObservation | None = None
    metrics: Metrics | None = None
    is_copied_context: bool | None = None
    llm_call_count: int | None = Field(None, ge=0)
    extra: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _holds_the_rules(self) -> Self:
        if self.timestamp is not None:
            datetime.fromisoformat(self.timestamp)
        agent_fields = [name for name in _AGENT_ONLY if getattr(self, name) is not None]
        if self.source != "agent" and agent_fields:
            raise ValueError(f"only steps of the agent have {', '.join(agent_fields)}")
        if (
            self.source == "agent"
            and self.llm_call_count == 0
            and {"metrics", "reasoning_content"} & set(agent_fields)
        ):
            raise ValueError("a step without a model call has neither `metrics` nor `reasoning_content`")
        known = {call.tool_call_id for call in self.tool_calls or ()}
        for result in () if self.observation is None else self.observation.results:
            if result.source_call_id is not None and result.source_call_id not in known:
                raise ValueError(
                    f"a result names tool call {result.source_call_id!r}, which its step {self.step_id} does "
                    "not have"
                )
        return self


class AtifAgent(_Strict):
    """The agent that acts."""

    name: str
    version: str
    model_name: str | None = None
    tool_definitions: list[dict[str, Any]] | None = None
    extra: dict[str, Any] | None = None


class FinalMetrics(_Strict):
    """Sums over a trajectory."""

    total_prompt_tokens: int | None = None
    total_completion_tokens: int | None = None
    total_cached_tokens: int | None = None
    total_cost_usd: float | None = None
    total_steps: int | None = Field(None, ge=0)
    extra: dict[str, Any] | None = None


class AtifTrajectory(_Strict):
    """The steps of one agent and of the agents that it delegated to."""

    schema_version: SchemaVersion = "ATIF-v1.8"
    session_id: str | None = None
    trajectory_id: str | None = None
    agent: AtifAgent
    steps: list[AtifStep] = Field(min_length=1)
    notes: str | None = None
    final_metrics: FinalMetrics | None = None
    continued_trajectory_ref: str | None = None
    extra: dict[str, Any] | None = None
    subagent_trajectories: "list[AtifTrajectory] | None" = None

    @model_validator(mode="after")
    def _is_numbered(self) -> Self:
        if [step.step_id for step in self.steps] != list(range(1, len(self.steps) + 1)):
            raise ValueError("step ids count from 1 without a gap")
        ids = [item.trajectory_id for item in self.subagent_trajectories or ()]
        if None in ids or len(set(ids)) != len(ids):
            raise ValueError("embedded trajectories need a `trajectory_id` each, all different")
        return self
