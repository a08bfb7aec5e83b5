"""Models of what our export writes into `extra` of an ATIF document.

A value of any other shape comes from another project.
"""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from harnessgym.store.rewards import RewardUnit

Json = dict[str, Any]


class _Told(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class ToldRollout(_Told):
    """`rollout` of a document."""

    task_set: str
    task_key: str
    policy: str | None = None
    seed: int = 0
    status: str = "finished"
    stop_reason: str | None = None
    verdict: str | None = None
    created_at: float | None = None
    ended_at: float | None = None


class ToldReward(_Told):
    """An item of a document's `rewards`."""

    unit: RewardUnit
    target: str
    channel: str
    value: float
    source: str
    detail: str | None = None


class ToldSpawn(_Told):
    """An item of an agent's `spawned`."""

    id: str
    t: float
    agent_id: str | None = None
    attributes: Json = Field(default_factory=dict)
    evidence: str | None = None
    confidence: float | None = None
    source: str | None = None


class ToldAgent(_Told):
    """`extra` of an agent."""

    harness: str
    role: str | None = None
    parent: str | None = None
    evidence: str | None = None
    spawned: list[ToldSpawn] | None = None


class ToldCall(_Told):
    """`call` of a step."""

    id: str
    ordinal: int
    kind: str
    status: str
    session: str
    side_call: str | None = None
    finish_reason: str | None = None
    break_class: str | None = None
    break_detail: str | None = None
    error: str | None = None
    parent: str | None = None
    continues: str | None = None
    shared: int = 0
    heard: list[Annotated[list[int], Field(min_length=1, max_length=2)]] = Field(default_factory=list)
    versions: list[Annotated[list[int], Field(min_length=3, max_length=3)]] = Field(default_factory=list)
    sampling: Json = Field(default_factory=dict)
    timings: Json = Field(default_factory=dict)
    answered: bool = True
    tools: list[Json] | None = None


def ours(model: type[_Told], value: object) -> Json:
    """Return a value as our export wrote it; empty if it has another shape."""
    try:
        return model.model_validate(value).model_dump(exclude_unset=True)
    except ValidationError:
        return {}
