"""A run's history of its tasks: each training group is one visit to its task, with its rewards."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

from sqlalchemy import Connection, func, select

from harnessgym.store.rewards import TOTAL, required
from harnessgym.store.tables import calls, groups, rewards, rollouts, tasks, trained

SUCCESS = 0.5
"""A reward above this counts as success where only success and failure are told apart."""


@dataclass(frozen=True, slots=True)
class Visit:
    """A training group of a task, and its rewards so far."""

    task: str
    """The task's key."""
    size: int
    """Number of submitted rollouts."""
    version: int
    """Policy version that was served when the group was submitted."""
    rewards: tuple[float, ...] = ()
    """Rewards of its graded rollouts in order of slot; empty while the group is open."""
    open: bool = False
    """Whether some of its rollouts have not ended."""
    fresh: bool = True
    """False for a group that replaces one that was given up: its task was not chosen anew."""


def visits(conn: Connection, run_id: str, first: int = 0) -> list[Visit]:
    """Return all training groups of a run from the ordinal `first` on, in order of submission.

    Raises `StoreError` if a finished rollout of a group that has ended has no reward.
    """
    ended = (rollouts.c.group_id == groups.c.id) & (rollouts.c.status == "finished")
    own = (
        (rewards.c.rollout_id == rollouts.c.id)
        & (rewards.c.channel == "reward")
        & (rewards.c.unit == "rollout")
    )
    of_group = (
        groups.c.ordinal,
        tasks.c.key,
        groups.c.size,
        groups.c.submitted_version,
        groups.c.state,
        groups.c.replaces,
    )
    query = (
        select(*of_group, rollouts.c.id, rewards.c.value)
        .join(tasks, tasks.c.id == groups.c.task_id)
        .outerjoin(rollouts, ended)
        .outerjoin(rewards, own)
        .where(groups.c.run_id == run_id, groups.c.purpose == "train", groups.c.ordinal >= first)
        .order_by(groups.c.ordinal, rollouts.c.slot)
    )
    rollout_rows = conn.execute(query).all()
    return [_visit([*rows]) for _, rows in groupby(rollout_rows, key=itemgetter(0))]


def longest_success(conn: Connection, run_id: str, task_id: str) -> int | None:
    """Return the most model calls that a successful training rollout of a task made, with side calls.

    None if no rollout succeeded.
    """
    success = (rewards.c.channel == "reward") & (rewards.c.unit == "rollout") & (rewards.c.value > SUCCESS)
    made = (
        select(func.count(calls.c.id).label("calls"))
        .select_from(rollouts)
        .join(groups, groups.c.id == rollouts.c.group_id)
        .join(rewards, (rewards.c.rollout_id == rollouts.c.id) & success)
        .join(calls, calls.c.rollout_id == rollouts.c.id)
        .where(rollouts.c.task_id == task_id, rollouts.c.run_id == run_id, groups.c.purpose == "train")
        .where(rollouts.c.status == "finished")
        .group_by(rollouts.c.id)
        .subquery()
    )
    most_calls = conn.execute(select(func.max(made.c.calls))).scalar()
    return None if most_calls is None else int(most_calls)


class Visits:
    """The visits of one run, for repeated reading. Ended visits are cached, because they never change."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._ended: list[Visit] = []
        """The visits before the first open one."""

    def read(self, conn: Connection) -> Sequence[Visit]:
        """Return all visits, in order of submission."""
        later = visits(conn, self._run_id, len(self._ended))
        ended = next((place for place, visit in enumerate(later) if visit.open), len(later))
        self._ended += later[:ended]
        return [*self._ended, *later[ended:]]


def _visit(rows: Sequence[tuple[int, str, int, int, str, int | None, str | None, float | None]]) -> Visit:
    """Build a visit from a group's rows: one per graded rollout, or a single row without a rollout."""
    _, task, size, version, state, replaces, *_ = rows[0]
    if state == "open":
        return Visit(task, size, version, open=True, fresh=replaces is None)
    reward_values = tuple(
        required(value, rollout_id) for *_, rollout_id, value in rows if rollout_id is not None
    )
    return Visit(task, size, version, reward_values, fresh=replaces is None)


@dataclass(frozen=True, slots=True)
class Success:
    """A rollout that succeeded and whose group was trained."""

    rollout_id: str
    group_id: str
    slot: int
    reward: float
    """The reward that it is trained on."""
    graded: float | None
    """The grader's reward, if a weighted sum is trained on instead."""
    versions: tuple[int, ...]
    """Versions that it was trained into according to the ledger, including orphaned ones."""


def successes(
    conn: Connection, policy_id: str, task_id: str, run_id: str, also: Collection[str]
) -> list[Success]:
    """Return the successful rollouts in a run's consumed groups of a task and in the groups `also`.

    The newest group comes first; within a group they are in order of slot.
    """
    reward = (
        (rewards.c.rollout_id == rollouts.c.id)
        & (rewards.c.channel == "reward")
        & (rewards.c.unit == "rollout")
    )
    total = rewards.alias("total")
    summed = (total.c.rollout_id == rollouts.c.id) & (total.c.channel == TOTAL) & (total.c.unit == "rollout")
    own = (rollouts.c.run_id == run_id) & (rollouts.c.task_id == task_id) & (groups.c.purpose == "train")
    settled = (groups.c.state == "consumed") | groups.c.id.in_(also)
    query = (
        select(
            rollouts.c.id,
            rollouts.c.group_id,
            rollouts.c.slot,
            rewards.c.value,
            total.c.value.label("total"),
            trained.c.version,
        )
        .join(groups, groups.c.id == rollouts.c.group_id)
        .join(rewards, reward)
        .outerjoin(total, summed)
        .outerjoin(trained, (trained.c.rollout_id == rollouts.c.id) & (trained.c.policy_id == policy_id))
        .where(
            own,
            settled,
            rollouts.c.status == "finished",
            rollouts.c.verdict == "valid",
            rewards.c.value > SUCCESS,
        )
        .order_by(groups.c.ordinal.desc(), rollouts.c.slot, trained.c.version)
    )
    successes_by_id: dict[str, Success] = {}
    for rollout_id, group_id, slot, graded, summed_up, version in conn.execute(query):
        before = successes_by_id[rollout_id].versions if rollout_id in successes_by_id else ()
        versions = before if version is None else (*before, version)
        weighed = summed_up is not None
        reward_of = float(summed_up if weighed else graded)
        successes_by_id[rollout_id] = Success(
            rollout_id, group_id, slot, reward_of, float(graded) if weighed else None, versions
        )
    return list(successes_by_id.values())
