"""Lists of rollouts for people, with filters."""

from dataclasses import dataclass

from sqlalchemy import ColumnElement, Connection, Select, func, select

from harnessgym.store.tables import calls, groups, rewards, rollouts, tasks


@dataclass(frozen=True, slots=True)
class ListedRollout:
    """One attempt and its result."""

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
    """Sampled tokens of all its calls."""


@dataclass(frozen=True, slots=True)
class RolloutFilter:
    """Which rollouts to list: those that meet every condition that is set."""

    run_id: str | None = None
    purpose: str | None = None
    task: str | None = None
    """The task's key within its set."""
    harness: str | None = None
    status: str | None = None
    stop_reason: str | None = None
    verdict: str | None = None
    min_reward: float | None = None
    max_reward: float | None = None
    since: float | None = None
    """Created at this time (Unix seconds) or later."""
    frozen: bool | None = None


_TRAINED_ON = (
    (rewards.c.rollout_id == rollouts.c.id)
    & (rewards.c.unit == "rollout")
    & (rewards.c.target == rollouts.c.id)
    & (rewards.c.channel == "reward")
)
"""Joins the reward that the filter's conditions apply to."""


def newest_rollouts(
    conn: Connection, limit: int, wanted: RolloutFilter = RolloutFilter()
) -> list[ListedRollout]:
    """Return the newest rollouts that match, newest first; all of them if `limit` is negative."""
    own = [rollouts.c[name] for name in ("slot", "attempt", "harness", "status", "stop_reason", "verdict")]
    newest = (
        select(
            rollouts.c.id, groups.c.purpose, groups.c.ordinal, *own, rewards.c.value, rollouts.c.created_at
        )
        .join(groups, groups.c.id == rollouts.c.group_id)
        .outerjoin(rewards, _TRAINED_ON)
        .where(*_conditions(wanted))
        .order_by(rollouts.c.created_at.desc(), rollouts.c.id.desc())
        .limit(limit if limit >= 0 else None)
        .subquery()
    )
    # Calls are counted only for the rollouts that the limit left: joining them first would aggregate the
    # calls of every rollout that matches.
    of_it = calls.c.rollout_id == newest.c.id
    made = [
        select(func.count()).select_from(calls).where(of_it).scalar_subquery(),
        select(func.coalesce(func.sum(calls.c.completion_len), 0)).where(of_it).scalar_subquery(),
    ]
    shown = [column for column in newest.c if column.name != "created_at"]
    query = select(*shown, *made).order_by(newest.c.created_at.desc(), newest.c.id.desc())
    return [ListedRollout(*tuple(row)) for row in conn.execute(query)]


def wanted_ids(wanted: RolloutFilter) -> Select[tuple[str]]:
    """Return a query of the ids of the rollouts that match."""
    joined = (
        select(rollouts.c.id).join(groups, groups.c.id == rollouts.c.group_id).outerjoin(rewards, _TRAINED_ON)
    )
    return joined.where(*_conditions(wanted))


def _conditions(wanted: RolloutFilter) -> list[ColumnElement[bool]]:
    equal = {
        rollouts.c.run_id: wanted.run_id,
        groups.c.purpose: wanted.purpose,
        rollouts.c.harness: wanted.harness,
        rollouts.c.status: wanted.status,
        rollouts.c.stop_reason: wanted.stop_reason,
        rollouts.c.verdict: wanted.verdict,
        rollouts.c.frozen: wanted.frozen,
    }
    conditions: list[ColumnElement[bool]] = [
        column == value for column, value in equal.items() if value is not None
    ]
    if wanted.task is not None:
        conditions.append(rollouts.c.task_id.in_(select(tasks.c.id).where(tasks.c.key == wanted.task)))
    if wanted.min_reward is not None:
        conditions.append(rewards.c.value >= wanted.min_reward)
    if wanted.max_reward is not None:
        conditions.append(rewards.c.value <= wanted.max_reward)
    if wanted.since is not None:
        conditions.append(rollouts.c.created_at >= wanted.since)
    return conditions


def rollouts_beginning(conn: Connection, prefix: str) -> list[str]:
    """Return up to two ids with this prefix. Exactly one means that the prefix is unambiguous."""
    query = select(rollouts.c.id).where(rollouts.c.id.startswith(prefix, autoescape=True)).limit(2)
    return list(conn.execute(query).scalars())
