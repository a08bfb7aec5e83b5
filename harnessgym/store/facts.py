"""Records of a rollout without its tokens and texts: the rollout, its agents, calls and rewards."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, select

from harnessgym.errors import StoreError
from harnessgym.store.tables import agents, calls, groups, policies, rewards, rollouts, runs, sessions, tasks
from harnessgym.tokens import VersionSpan


@dataclass(frozen=True, slots=True)
class RolloutFacts:
    """One rollout."""

    id: str
    run_id: str
    group_id: str
    policy_id: str
    policy: str
    """Name of the policy."""
    task_set: str
    task_key: str
    harness: str
    seed: int
    status: str
    stop_reason: str | None
    verdict: str | None
    created_at: float
    ended_at: float | None


@dataclass(frozen=True, slots=True)
class AgentFacts:
    """One agent of a rollout."""

    id: str
    name: str
    role: str | None
    parent_agent_id: str | None
    spawn_event_id: str | None
    session_id: str | None
    evidence: str | None


@dataclass(frozen=True, slots=True)
class CallFacts:
    """One call of a rollout."""

    id: str
    session_id: str
    ordinal: int
    agent_id: str | None
    parent_call_id: str | None
    protocol: str
    kind: str
    side_call: str | None
    status: str
    prompt_len: int
    prompt_segment: str
    completion_len: int | None
    completion_segment: str | None
    versions: tuple[VersionSpan, ...]
    sampling: Mapping[str, Any]
    """Sampling settings as they were applied."""
    finish_reason: str | None
    upstream: str
    usage: Mapping[str, int]
    timings: Mapping[str, float]
    break_class: str | None
    break_detail: str | None
    error: str | None
    created_at: float
    policy_id: str | None = None
    """The policy that was called; None if it is the rollout's own."""


@dataclass(frozen=True, slots=True)
class RewardFacts:
    """One reward."""

    unit: str
    target: str
    channel: str
    value: float
    source: str
    detail: str | None


def rollout_of(conn: Connection, rollout_id: str) -> RolloutFacts:
    """Return a rollout. Raises `StoreError` if there is none."""
    own = [
        rollouts.c[name]
        for name in RolloutFacts.__dataclass_fields__
        if name not in ("policy", "task_set", "task_key")
    ]  # fmt: skip
    named = [policies.c.name.label("policy"), tasks.c.set.label("task_set"), tasks.c.key.label("task_key")]
    joined = select(*own, *named).join(tasks, tasks.c.id == rollouts.c.task_id)
    query = joined.join(policies, policies.c.id == rollouts.c.policy_id).where(rollouts.c.id == rollout_id)
    row = conn.execute(query).mappings().first()
    if row is None:
        raise StoreError(
            f"There is no rollout {rollout_id!r} in this store. `harnessgym traces show` lists them."
        )
    return RolloutFacts(**row)


def agents_of(conn: Connection, rollout_id: str) -> list[AgentFacts]:
    """Return a rollout's agents in the order they appeared."""
    columns = [agents.c[name] for name in AgentFacts.__dataclass_fields__]
    query = (
        select(*columns).where(agents.c.rollout_id == rollout_id).order_by(agents.c.created_at, agents.c.id)
    )
    return [AgentFacts(**row) for row in conn.execute(query).mappings()]


def calls_of(conn: Connection, rollout_id: str) -> list[CallFacts]:
    """Return a rollout's calls by session in order of opening; within a session in the order they began."""
    renamed = {"versions": calls.c.version_spans, "sampling": calls.c.sampling_applied}
    columns = [
        (renamed[name] if name in renamed else calls.c[name]).label(name)
        for name in CallFacts.__dataclass_fields__
    ]
    query = (
        select(*columns)
        .join(sessions, sessions.c.id == calls.c.session_id)
        .where(calls.c.rollout_id == rollout_id)
    )
    out = []
    for row in conn.execute(query.order_by(sessions.c.created_at, sessions.c.id, calls.c.ordinal)).mappings():
        spans = tuple(VersionSpan(*span) for span in row["versions"] or ())
        out.append(
            CallFacts(
                **{**row, "versions": spans, "usage": row["usage"] or {}, "timings": row["timings"] or {}}
            )
        )
    return out


def rewards_of(conn: Connection, rollout_id: str) -> list[RewardFacts]:
    """Return a rollout's rewards in order of unit, target and channel."""
    columns = [rewards.c[name] for name in RewardFacts.__dataclass_fields__]
    query = select(*columns).where(rewards.c.rollout_id == rollout_id)
    query = query.order_by(rewards.c.unit, rewards.c.target, rewards.c.channel)
    return [RewardFacts(**row) for row in conn.execute(query).mappings()]


def run_config_of(conn: Connection, run_id: str) -> Mapping[str, Any]:
    """Return the configuration that a run was started with."""
    config = conn.execute(select(runs.c.config).where(runs.c.id == run_id)).scalar()
    return config if isinstance(config, dict) else {}


def group_rewards_of(conn: Connection, group_id: str, channel: str = "reward") -> list[float]:
    """Return the values of a channel for those rollouts of a group that have one."""
    joined = select(rewards.c.value).join(rollouts, rollouts.c.id == rewards.c.rollout_id)
    of_group = joined.join(groups, groups.c.id == rollouts.c.group_id).where(groups.c.id == group_id)
    query = of_group.where(rewards.c.unit == "rollout", rewards.c.channel == channel)
    return [
        float(value) for value in conn.execute(query.order_by(rollouts.c.slot, rollouts.c.attempt)).scalars()
    ]
