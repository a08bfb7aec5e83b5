"""Rewards: numbers that judge what a rollout did. Each is for one unit, under one channel, and written once.

The unit is the kind of thing that is judged; the target identifies it:

    token       `CALL:INDEX`, counted from 0 in the call's completion
    turn        a call
    message     an event of kind `message`
    tool_call   an event of kind `tool_call`
    agent       an agent
    rollout     the rollout
    team        the rollout's group

Channels are named freely. HarnessGym itself knows these:

    reward      of a rollout: the grader's; success in an evaluation; trained on if there is no `total`
    total       of a rollout: the weighted sum that is trained on, if the run weighs rewards
    task.*      other results of the task
    process.*   how the rollout proceeded: contracts kept, judges' opinions
    cost.*      what it used: tokens, calls, seconds
    orchestration.parallelism_speedup   seconds of spawned agents' work per second until it was read
    orchestration.split_correctness     whether the task was split into the right parts
    orchestration.aggregation_quality   how well the results were combined

A reward is never overwritten. A failed rollout has a stop reason and no reward; only `cost.*` channels may be
written for it. A finished rollout without a `reward` (`harnessgym wrap` grades nothing) counts in no mean and
cannot be trained on: a missing reward is not 0.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from sqlalchemy import Column, Connection, Table, bindparam, insert, select

from harnessgym.errors import StoreError
from harnessgym.store.tables import agents, calls, events, new_id, rewards, rollouts

TOTAL = "total"
RewardUnit = Literal["token", "turn", "message", "tool_call", "agent", "rollout", "team"]
_UNREWARDED = ("failed", "cancelled")
"""Statuses of rollouts for which only `cost.*` channels may be written."""


@dataclass(frozen=True, slots=True)
class RewardRow:
    """One reward. Raises `StoreError` for an unknown unit, an empty channel or a value that is not finite."""

    rollout_id: str
    unit: RewardUnit
    target: str
    channel: str
    value: float
    source: str
    """Where it comes from: the grader, or the name of a reward."""
    detail: str | None = None
    """The explanation, for people."""

    def __post_init__(self) -> None:
        if self.unit not in get_args(RewardUnit):
            raise StoreError(
                f"{self}: there is no unit {self.unit!r}. Known: {', '.join(get_args(RewardUnit))}."
            )
        if not self.channel or not math.isfinite(self.value):
            raise StoreError(f"{self} needs the name of a channel and a finite number (got {self.value}).")

    def __str__(self) -> str:
        where = "" if self.unit == "rollout" else f"{self.unit} {self.target} in "
        return f"The reward {self.channel!r} of {where}rollout {self.rollout_id}"


def add(conn: Connection, reward: RewardRow) -> bool:
    """Write a reward. Returns False if the same reward exists already.

    Raises `StoreError` if its target has another value under this channel, if the rollout has no such target,
    or if the rollout failed.
    """
    of_target = (rewards.c.unit == reward.unit) & (rewards.c.target == reward.target)
    known = select(rewards.c.value, rewards.c.source).where(
        rewards.c.rollout_id == reward.rollout_id, of_target
    )
    row = conn.execute(known.where(rewards.c.channel == reward.channel)).first()
    if row is not None:
        if row.value != reward.value:
            raise StoreError(
                f"{reward} is {row.value} (from {row.source}) and cannot become {reward.value} (from "
                f"{reward.source}): a reward is written once. Use a channel of another name."
            )
        return False
    check(conn, reward)
    values = {name: getattr(reward, name) for name in RewardRow.__dataclass_fields__}
    conn.execute(insert(rewards).values(id=new_id(), **values))
    return True


def required(value: float | None, rollout_id: str, channel: str = "reward") -> float:
    """Return the value of a finished rollout's reward, which is None if an outer join matched no reward.

    Raises `StoreError` if it is None.
    """
    if value is None:
        raise StoreError(
            f"Rollout {rollout_id} finished without a reward under the channel {channel!r}, and a missing "
            "reward is not 0. Write the one that its grader gave (`harnessgym.store.rewards.add`), or "
            "remove its group."
        )
    return float(value)


def of_rollout(conn: Connection, rollout_id: str) -> list[RewardRow]:
    """Return all rewards in a rollout, in the order they were written."""
    columns = [rewards.c[name] for name in RewardRow.__dataclass_fields__]
    query = (
        select(*columns)
        .where(rewards.c.rollout_id == rollout_id)
        .order_by(rewards.c.created_at, rewards.c.id)
    )
    return [RewardRow(**row) for row in conn.execute(query).mappings()]


def by_unit(
    conn: Connection, rollout_id: str, units: Sequence[RewardUnit]
) -> dict[str, dict[str, dict[str, float]]]:
    """Return the values of a rollout's rewards by unit, target and channel; every one of `units` is a key."""
    out: dict[str, dict[str, dict[str, float]]] = {unit: {} for unit in units}
    for unit, target, channel, value in conn.execute(_VALUES, {"rollout": rollout_id, "units": units}):
        out[unit].setdefault(target, {})[channel] = value
    return out


def channels(conn: Connection, run_id: str, unit: RewardUnit) -> tuple[str, ...]:
    """Return the channels under which units of this kind have rewards in a run, sorted."""
    query = select(rewards.c.channel).distinct().join(rollouts, rollouts.c.id == rewards.c.rollout_id)
    query = query.where(rollouts.c.run_id == run_id, rewards.c.unit == unit)
    return tuple(conn.execute(query.order_by(rewards.c.channel)).scalars())


def check(conn: Connection, reward: RewardRow) -> None:
    """Raise `StoreError` unless the reward's rollout has such a target and did not fail."""
    rollout = conn.execute(
        select(rollouts.c.status, rollouts.c.stop_reason, rollouts.c.group_id).where(
            rollouts.c.id == reward.rollout_id
        )
    ).first()
    if rollout is None:
        raise StoreError(f"{reward} cannot be written: there is no such rollout.")
    if rollout.status in _UNREWARDED and not reward.channel.startswith("cost."):
        raise StoreError(
            f"{reward} cannot be written: the rollout {rollout.status} ({rollout.stop_reason}), which is "
            "no result. Only channels `cost.*` may be."
        )
    if not _exists(conn, reward, rollout.group_id):
        raise StoreError(f"{reward} cannot be written: the rollout has no such {reward.unit}.")


def _exists(conn: Connection, reward: RewardRow, group_id: str) -> bool:
    """Return whether the target is such a unit of the rollout."""
    match reward.unit:
        case "rollout":
            return reward.target == reward.rollout_id
        case "team":
            return reward.target == group_id
        case "agent":
            return _row(conn, reward, agents, reward.target) is not None
        case "turn":
            return _row(conn, reward, calls, reward.target) is not None
        case "token":
            # The index must be written canonically. With `C:7` and `C:07` one token could have two rewards.
            call, _, index = reward.target.rpartition(":")
            length = _row(conn, reward, calls, call, calls.c.completion_len)
            counted = index.isdecimal() and index == str(int(index))
            return counted and length is not None and int(index) < int(length)
        case "message" | "tool_call":
            return _row(conn, reward, events, reward.target, events.c.kind) == reward.unit


def _row(
    conn: Connection,
    reward: RewardRow,
    table: Table,
    row_id: str,
    column: Column[str] | Column[int] | None = None,
) -> str | int | None:
    """Return a column of one of the rollout's rows (by default the id); None if there is no such row."""
    query = select(table.c.id if column is None else column).where(table.c.id == row_id)
    return conn.execute(query.where(table.c.rollout_id == reward.rollout_id)).scalar()


_VALUES = select(rewards.c.unit, rewards.c.target, rewards.c.channel, rewards.c.value).where(
    rewards.c.rollout_id == bindparam("rollout"), rewards.c.unit.in_(bindparam("units", expanding=True))
)
