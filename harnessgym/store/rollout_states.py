"""States of rollouts for clients that wait for them: how far each one is, and what changed since a time."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal, TypeVar

from sqlalchemy import Connection, Select, func, select

from harnessgym.errors import StoreError
from harnessgym.outcome.failure import Cause, StopReason
from harnessgym.store.tables import calls, groups, rewards, rollouts, tasks

Change = Literal["submitted", "started", "ended"]
Name = TypeVar("Name", bound=StrEnum)


@dataclass(frozen=True, slots=True)
class RolloutState:
    """One attempt at one slot of a group."""

    id: str
    run_id: str
    group_id: str
    purpose: str
    ordinal: int
    """Ordinal of the group within its purpose."""
    slot: int
    attempt: int
    task_set: str
    task: str
    harness: str
    sandbox: str
    seed: int
    status: str
    stop_reason: StopReason | None
    cause: Cause | None
    verdict: str | None
    detail: str | None
    latencies: dict[str, float]
    grading: dict[str, Any] | None
    created_at: float
    started_at: float | None
    ended_at: float | None
    calls: int
    tokens: int
    """Sampled tokens of all its calls. For outside models, as they report them."""
    rewards: dict[str, float]
    """Rewards of the rollout by channel."""
    continued_by: str | None
    """The newest attempt at the same slot, if that is a later one."""

    @property
    def reward(self) -> float | None:
        """The grader's reward; None if there is none."""
        return self.rewards.get("reward")

    @property
    def final(self) -> bool:
        """Whether no further attempt at its slot follows."""
        return self.status in ("finished", "cancelled") or (
            self.status == "failed" and self.continued_by is None
        )


_LATER = rollouts.alias("later")
_CONTINUED = (
    select(_LATER.c.id)
    .where(
        _LATER.c.group_id == rollouts.c.group_id,
        _LATER.c.slot == rollouts.c.slot,
        _LATER.c.attempt > rollouts.c.attempt,
    )
    .order_by(_LATER.c.attempt.desc())
    .limit(1)
    .scalar_subquery()
)
_OWN = (
    "id", "run_id", "group_id", "slot", "attempt", "harness", "sandbox", "seed", "status", "stop_reason",
    "cause", "verdict", "detail", "latencies", "grading", "created_at", "started_at", "ended_at",
)  # fmt: skip


def get(conn: Connection, rollout_ids: Sequence[str]) -> list[RolloutState]:
    """Return the states of those rollouts that exist, oldest first."""
    return _states(conn, _query().where(rollouts.c.id.in_(rollout_ids)))


def listing(
    conn: Connection,
    run_id: str,
    *,
    status: str | None = None,
    group_id: str | None = None,
    purpose: str | None = None,
    harness: str | None = None,
    after: str = "",
    limit: int = 100,
) -> list[RolloutState]:
    """Return a run's rollouts that meet every given condition, in order of id.

    `after` is the id to continue after. Ids sort by creation time.
    """
    wanted = {
        rollouts.c.status: status,
        rollouts.c.group_id: group_id,
        groups.c.purpose: purpose,
        rollouts.c.harness: harness,
    }
    query = _query().where(rollouts.c.run_id == run_id, rollouts.c.id > after)
    for column, value in wanted.items():
        if value is not None:
            query = query.where(column == value)
    return _states(conn, query.limit(limit))


def slots(conn: Connection, run_id: str, purpose: str) -> list[RolloutState]:
    """Return the newest attempt at every slot of a purpose, in order of group and slot."""
    query = _query().where(rollouts.c.run_id == run_id, groups.c.purpose == purpose, _CONTINUED.is_(None))
    return sorted(_states(conn, query), key=lambda state: (state.ordinal, state.slot))


def changed(
    conn: Connection, run_id: str, since: float, rollout_ids: Sequence[str] | None = None
) -> list[tuple[float, Change, RolloutState]]:
    """Return what happened to rollouts of a run at `since` (Unix seconds) or later, in order of time.

    Each change comes with the rollout's current state. Times are from the database's clock, but a late commit
    can add a change before one that was returned already. So ask again from slightly earlier and skip known
    changes.
    """
    times: dict[Change, Any] = {
        "submitted": rollouts.c.created_at,
        "started": rollouts.c.started_at,
        "ended": rollouts.c.ended_at,
    }
    query = _query().where(rollouts.c.run_id == run_id)
    if rollout_ids is not None:
        query = query.where(rollouts.c.id.in_(rollout_ids))
    happened = [column >= since for column in times.values()]
    out: list[tuple[float, Change, RolloutState]] = []
    for state in _states(conn, query.where(happened[0] | happened[1] | happened[2])):
        moments: dict[Change, float | None] = {
            "submitted": state.created_at,
            "started": state.started_at,
            "ended": state.ended_at,
        }
        out += [(at, kind, state) for kind, at in moments.items() if at is not None and at >= since]
    order = list(times)
    return sorted(out, key=lambda item: (item[0], item[2].id, order.index(item[1])))


def latest(conn: Connection, rollout_id: str) -> str | None:
    """Return the newest attempt at a rollout's slot; None if there is no such rollout."""
    query = select(func.coalesce(_CONTINUED, rollouts.c.id)).where(rollouts.c.id == rollout_id)
    return conn.execute(query).scalar()


def later_attempts(conn: Connection, rollout_ids: Sequence[str]) -> list[str]:
    """Return all attempts that followed rollouts at their slots, in order of id."""
    same = (_LATER.c.group_id == rollouts.c.group_id) & (_LATER.c.slot == rollouts.c.slot)
    query = select(_LATER.c.id).join(rollouts, same & (_LATER.c.attempt > rollouts.c.attempt))
    wanted = query.where(rollouts.c.id.in_(rollout_ids)).distinct().order_by(_LATER.c.id)
    return list(conn.execute(wanted).scalars())


def of_group(conn: Connection, run_id: str, purpose: str) -> list[str]:
    """Return the first attempts at all slots of a purpose, in order."""
    query = select(rollouts.c.id).join(groups, groups.c.id == rollouts.c.group_id)
    mine = query.where(rollouts.c.run_id == run_id, groups.c.purpose == purpose, rollouts.c.attempt == 0)
    return list(conn.execute(mine.order_by(groups.c.ordinal, rollouts.c.slot)).scalars())


def _query() -> Select[Any]:
    of_group = [groups.c.purpose, groups.c.ordinal]
    of_task = [tasks.c.set.label("task_set"), tasks.c.key.label("task")]
    joined = select(
        *(rollouts.c[name] for name in _OWN), *of_group, *of_task, _CONTINUED.label("continued_by")
    )
    joined = joined.join(groups, groups.c.id == rollouts.c.group_id).join(
        tasks, tasks.c.id == rollouts.c.task_id
    )
    return joined.order_by(rollouts.c.id)


def _states(conn: Connection, query: Select[Any]) -> list[RolloutState]:
    rows = conn.execute(query).mappings().all()
    ids = [row["id"] for row in rows]
    rewards_by_rollout = _rewards(conn, ids)
    used = _usage(conn, ids)
    return [
        RolloutState(
            **{
                **row,
                "latencies": row["latencies"] or {},
                "stop_reason": _known(StopReason, row["stop_reason"], "stop reason", row["id"]),
                "cause": _known(Cause, row["cause"], "cause", row["id"]),
            },
            rewards=rewards_by_rollout.get(row["id"], {}),
            calls=used.get(row["id"], (0, 0))[0],
            tokens=used.get(row["id"], (0, 0))[1],
        )
        for row in rows
    ]


def _known(names: type[Name], stored: str | None, what: str, rollout_id: str) -> Name | None:
    """Convert a stored name to its enum. Raises `StoreError` for a name that this version does not have."""
    if stored is None:
        return None
    try:
        return names(stored)
    except ValueError:
        raise StoreError(
            f"Rollout {rollout_id} has the {what} {stored!r}, which this version of HarnessGym does not "
            f"know. A newer version wrote it: read the store with that version. Known: {', '.join(names)}."
        ) from None


def _rewards(conn: Connection, ids: Sequence[str]) -> dict[str, dict[str, float]]:
    own = (rewards.c.unit == "rollout") & (rewards.c.target == rewards.c.rollout_id)
    out: dict[str, dict[str, float]] = {}
    for part in _parts(ids):
        query = select(rewards.c.rollout_id, rewards.c.channel, rewards.c.value)
        for rollout_id, channel, value in conn.execute(query.where(rewards.c.rollout_id.in_(part), own)):
            out.setdefault(rollout_id, {})[channel] = value
    return out


def _usage(conn: Connection, ids: Sequence[str]) -> dict[str, tuple[int, int]]:
    out: dict[str, tuple[int, int]] = {}
    for part in _parts(ids):
        query = select(calls.c.rollout_id, calls.c.completion_len, calls.c.usage).where(
            calls.c.rollout_id.in_(part)
        )
        for rollout_id, length, usage in conn.execute(query):
            number, tokens = out.get(rollout_id, (0, 0))
            counted = length or int((usage or {}).get("completion_tokens") or 0)
            out[rollout_id] = (number + 1, tokens + counted)
    return out


def _parts(ids: Sequence[str], size: int = 500) -> list[Sequence[str]]:
    return [ids[start : start + size] for start in range(0, len(ids), size)]
