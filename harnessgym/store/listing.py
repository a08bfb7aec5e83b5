"""Rollouts as people look at them."""

from dataclasses import dataclass

from sqlalchemy import Connection, func, select

from harnessgym.store.tables import calls, groups, rewards, rollouts


@dataclass(frozen=True, slots=True)
class ListedRollout:
    """One attempt, with what it came to."""

    id: str
    purpose: str
    ordinal: int
    slot: int
    attempt: int
    harness: str
    status: str
    stop_reason: str | None
    verdict: str | None
    reward: float | None
    calls: int
    tokens: int
    """Sampled in all its calls."""


def newest_rollouts(conn: Connection, limit: int) -> list[ListedRollout]:
    """The newest rollouts, newest first."""
    made = [func.count(calls.c.id), func.coalesce(func.sum(calls.c.completion_len), 0)]
    own = [rollouts.c[name] for name in ("slot", "attempt", "harness", "status", "stop_reason", "verdict")]
    reward = (rewards.c.rollout_id == rollouts.c.id) & (rewards.c.channel == "reward") & (rewards.c.unit == "rollout")
    query = (
        select(rollouts.c.id, groups.c.purpose, groups.c.ordinal, *own, rewards.c.value, *made)
        .join(groups, groups.c.id == rollouts.c.group_id)
        .outerjoin(rewards, reward)
        .outerjoin(calls, calls.c.rollout_id == rollouts.c.id)
        .group_by(rollouts.c.id)
        .order_by(rollouts.c.created_at.desc(), rollouts.c.id.desc())
        .limit(limit)
    )
    return [ListedRollout(*tuple(row)) for row in conn.execute(query)]


def rollouts_beginning(conn: Connection, prefix: str) -> list[str]:
    """Up to two ids that begin like this: exactly one means it is unambiguous."""
    query = select(rollouts.c.id).where(rollouts.c.id.startswith(prefix, autoescape=True)).limit(2)
    return list(conn.execute(query).scalars())
