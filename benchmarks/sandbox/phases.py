"""Where the rollouts of a run are, and what came of them, read from its store by somebody else than their
node.
"""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy import Connection, func, select

from harnessgym.store.calls import FINISHED
from harnessgym.store.tables import calls, groups, rewards, rollouts, sessions, tasks

PHASES = ("preparing", "running", "grading")
"""Until the first model call is asked; until its session is sealed; until its verdict."""


@dataclass(frozen=True, slots=True)
class Moment:
    """A run at one moment."""

    phases: Mapping[str, int] = field(default_factory=dict)
    """Rollouts that are under way, by phase."""
    finished: int = 0
    """Rollouts."""
    calls: int = 0


@dataclass
class Wrong:
    """What must not be. Everything is named."""

    lost: list[str] = field(default_factory=list)
    """Task and sample that did not finish."""
    doubled: list[str] = field(default_factory=list)
    """Those that finished more than once, or have more than one line or reward."""
    unearned: list[str] = field(default_factory=list)
    """Rewards other than the agent's work deserves, or of attempts that did not finish."""

    def __bool__(self) -> bool:
        return bool(self.lost or self.doubled or self.unearned)


def moment(conn: Connection) -> Moment:
    """The run that the store holds."""
    finished = select(func.count()).select_from(rollouts).where(rollouts.c.status == "finished")
    number = select(func.count()).select_from(calls).where(calls.c.status.in_(FINISHED))
    return Moment(_under_way(conn), conn.execute(finished).scalar_one(), conn.execute(number).scalar_one())


def _under_way(conn: Connection) -> dict[str, int]:
    asked = select(calls.c.id).where(calls.c.rollout_id == rollouts.c.id).exists()
    sealed = select(sessions.c.id).where(sessions.c.rollout_id == rollouts.c.id, sessions.c.sealed).exists()
    query = select(asked, sealed, func.count()).where(rollouts.c.status == "running").group_by(asked, sealed)
    out = dict.fromkeys(PHASES, 0)
    for was_asked, was_sealed, count in conn.execute(query):
        out["grading" if was_sealed else "running" if was_asked else "preparing"] += count
    return out


def wrong(conn: Connection, results: Path, expected: Mapping[str, float], samples: int, turns: int) -> Wrong:
    """Compares store and `results.jsonl` with `expected` rewards by task, each sampled so often with so
    many model calls.
    """
    found = Wrong()
    wanted = {(task, slot) for task in expected for slot in range(samples)}
    lines = Counter(
        (line["task"], line["slot"]) for line in map(json.loads, results.read_text().splitlines())
    )
    ended = _finished(conn)
    seen = Counter((task, slot) for task, slot, _ in ended.values())
    for which in sorted(wanted | set(seen) | set(lines)):
        name = f"{which[0]} sample {which[1]}"
        if seen[which] < 1 or lines[which] < 1:
            found.lost.append(f"{name}: finished {seen[which]} times, {lines[which]} lines")
        if seen[which] > 1 or lines[which] > 1 or which not in wanted:
            found.doubled.append(f"{name}: finished {seen[which]} times, {lines[which]} lines")
    given: dict[str, list[float]] = {}
    for rollout_id, channel, value in conn.execute(
        select(rewards.c.rollout_id, rewards.c.channel, rewards.c.value)
    ):
        if channel != "reward" or rollout_id not in ended:
            found.unearned.append(f"rollout {rollout_id}: {channel} {value}")
        else:
            given.setdefault(rollout_id, []).append(value)
    for rollout_id, (task, slot, asked) in ended.items():
        got, name = given.get(rollout_id, []), f"{task} sample {slot}, rollout {rollout_id}"
        if len(got) > 1:
            found.doubled.append(f"{name}: {len(got)} rewards")
        if got != [expected.get(task)] or asked != turns:
            found.unearned.append(f"{name}: {got} after {asked} calls")
    return found


def _finished(conn: Connection) -> dict[str, tuple[str, int, int]]:
    """Task, slot and number of calls of every rollout with a verdict."""
    number = (
        select(func.count())
        .where(calls.c.rollout_id == rollouts.c.id, calls.c.status.in_(FINISHED))
        .scalar_subquery()
    )
    joined = rollouts.join(groups, groups.c.id == rollouts.c.group_id).join(
        tasks, tasks.c.id == rollouts.c.task_id
    )
    query = select(rollouts.c.id, tasks.c.key, rollouts.c.slot, number).select_from(joined)
    return {
        row[0]: (row[1], row[2], row[3]) for row in conn.execute(query.where(rollouts.c.status == "finished"))
    }


def causes(conn: Connection) -> dict[str, int]:
    """How many attempts came to nothing, by what went wrong."""
    query = (
        select(rollouts.c.cause, func.count()).where(rollouts.c.status == "failed").group_by(rollouts.c.cause)
    )
    return {str(cause): count for cause, count in conn.execute(query)}
