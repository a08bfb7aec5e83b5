"""The training groups that a run has submitted and not consumed.

Some are open or complete, some were given up, and some of those must be submitted again. A group that the
trainer gives up keeps its rows; its tokens are excluded with the reason. A requeued group is replaced by
another group of the same task exactly once: the replacement names the ordinal that it replaces, which is
unique.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from sqlalchemy import ColumnElement, Connection, func, select, update

from harnessgym.store import rollouts, runs
from harnessgym.store.tables import calls, groups, tasks
from harnessgym.store.tables import rollouts as rollouts_table

GivenUp = Literal["too_stale", "requeued", "no_signal", "too_few"]
"""Why a group was given up. requeued: it was too stale, and its task is submitted again. no_signal: its
rewards were all equal, and another group takes its place in the batch. too_few: too few of its rollouts were
graded (`GroupSpec.min_members`)."""
_PURPOSE = "train"


@dataclass(frozen=True, slots=True)
class BacklogGroup:
    """A group that is open or complete."""

    id: str
    ordinal: int
    complete: bool
    submitted_version: int
    """Lower bound: none of its tokens was sampled from an older version."""
    submitted_versions: Mapping[str, int] = field(default_factory=dict)
    """The same by policy if the run has several policies."""


@dataclass(frozen=True, slots=True)
class Requeued:
    """A group whose task must be submitted again."""

    ordinal: int
    task_key: str
    size: int
    """Number of its rollouts."""


def standing(conn: Connection, run_id: str) -> list[BacklogGroup]:
    """Return all groups that are neither consumed nor given up, in order of submission."""
    state = groups.c.state.in_(("open", "complete"))
    names = ("id", "ordinal", "state", "policy_id", "submitted_version", "submitted_versions")
    query = select(*(groups.c[name] for name in names)).where(_mine(run_id), state).order_by(groups.c.ordinal)
    out = []
    for row in conn.execute(query):
        several = (
            {row.policy_id: row.submitted_version, **row.submitted_versions} if row.submitted_versions else {}
        )
        out.append(BacklogGroup(row.id, row.ordinal, row.state == "complete", row.submitted_version, several))
    return out


def give_up(conn: Connection, group_id: str, reason: GivenUp, version: int) -> bool:
    """Drop a complete group that the step from `version` does not want.

    Returns False if the group is not complete or is already in a batch.
    """
    ours = (groups.c.id == group_id) & (groups.c.state == "complete") & groups.c.batch.is_(None)
    values = {"state": "dropped", "given_up": reason, "given_up_version": version}
    if not conn.execute(update(groups).where(ours).values(values)).rowcount:
        return False
    members = select(rollouts_table.c.id).where(rollouts_table.c.group_id == group_id)
    for rollout_id in conn.execute(members).scalars().all():
        rollouts.exclude(conn, rollout_id, _exclusion_reason(reason))
    return True


def oldest_versions(conn: Connection, group_id: str) -> dict[str, int]:
    """Return the oldest version known to have sampled tokens of a group, by policy.

    Failed attempts do not count.
    """
    own = (rollouts_table.c.group_id == group_id) & rollouts_table.c.status.in_(("running", "finished"))
    asked = func.coalesce(calls.c.policy_id, rollouts_table.c.policy_id)
    query = select(asked, calls.c.version_spans).join(
        rollouts_table, rollouts_table.c.id == calls.c.rollout_id
    )
    out: dict[str, int] = {}
    for policy_id, spans in conn.execute(query.where(own, calls.c.completion_len > 0)):
        versions = [version for _, _, version in spans or ()]
        if versions:
            out[policy_id] = min([*versions, *([out[policy_id]] if policy_id in out else [])])
    return out


def oldest_version(conn: Connection, group_id: str) -> int | None:
    """Like `oldest_versions`, for a run with one policy; None if no tokens have been sampled."""
    return min(oldest_versions(conn, group_id).values(), default=None)


def stop(conn: Connection, group_id: str, reason: GivenUp, version: int) -> bool:
    """Give up an open group and cancel its rollouts that have not ended.

    Returns False if the group is not open.
    """
    rows = select(rollouts_table.c.id, rollouts_table.c.status).where(rollouts_table.c.group_id == group_id)
    state = conn.execute(select(groups.c.state).where(groups.c.id == group_id).with_for_update()).scalar_one()
    if state != "open":
        return False
    members = conn.execute(rows).all()
    for member in members:
        rollouts.exclude(conn, member.id, _exclusion_reason(reason))
    left = [member.id for member in members if member.status in ("pending", "running")]
    rollouts.cancel(conn, left, "Its group is too old to be trained.")
    # Cancelling its last rollout may have dropped the group as `too_few`. `give_up` takes complete groups
    # only, and it must record this reason instead.
    conn.execute(update(groups).where(groups.c.id == group_id).values(state="complete"))
    return give_up(conn, group_id, reason, version)


def given_up(conn: Connection, run_id: str, version: int) -> dict[GivenUp, int]:
    """Count the groups that the steps from `version` gave up, by reason."""
    query = select(groups.c.given_up, func.count()).where(
        _dropped(run_id), groups.c.given_up_version == version
    )
    return dict(conn.execute(query.group_by(groups.c.given_up)).all())


def too_few(conn: Connection, run_id: str) -> int:
    """Count the groups that were dropped because too few of their rollouts were graded."""
    query = select(func.count()).select_from(groups).where(_dropped(run_id), groups.c.given_up == "too_few")
    return int(conn.execute(query).scalar_one())


def batch(conn: Connection, run_id: str, step: int) -> list[str]:
    """Return the groups settled so far for a step's batch, in order.

    All trainers of a run with several policies take this batch.
    """
    query = select(groups.c.id).where(_mine(run_id), groups.c.batch == step).order_by(groups.c.place)
    return list(conn.execute(query).scalars())


def settle_batch(
    conn: Connection, run_id: str, step: int, known: int, take: Sequence[str],
    leave: Mapping[GivenUp, Sequence[str]] | None = None, refills: int = 0,
) -> bool:  # fmt: skip
    """Append groups to a step's batch, after the `known` ones already in it, and give others up by reason.

    The trainers of all policies take the same batch. A step gives up at most `refills` groups without a
    signal, no matter which trainer asks. Groups that are too old are stopped if they are still running.
    Returns False and changes nothing if another trainer was faster; read `batch` again then.
    """
    # Trainers of several processes settle the same batch. The lock on the run makes them take turns, and
    # everything the decision rests on is read again after it is held.
    runs.lock(conn, run_id)
    unwanted = {group_id: reason for reason, group_ids in (leave or {}).items() for group_id in group_ids}
    barren = [group_id for group_id, reason in unwanted.items() if reason == "no_signal"]
    mine = _mine(run_id) & groups.c.batch.is_(None) & groups.c.id.in_([*take, *unwanted])
    states = select(groups.c.id, groups.c.state).where(mine, groups.c.state.in_(("open", "complete")))
    state_by_group = dict(conn.execute(states.with_for_update()).all())
    if len(state_by_group) < len(take) + len(unwanted) or any(
        state_by_group[group_id] != "complete" for group_id in (*take, *barren)
    ):
        return False
    spent = given_up(conn, run_id, step - 1).get("no_signal", 0) if barren else 0
    if len(batch(conn, run_id, step)) != known or spent + len(barren) > refills:
        return False
    for group_id, reason in unwanted.items():
        drop = give_up if state_by_group[group_id] == "complete" else stop
        drop(conn, group_id, reason, step - 1)
    for place, group_id in enumerate(take, known):
        conn.execute(update(groups).where(groups.c.id == group_id).values(batch=step, place=place))
    return True


def free(conn: Connection, run_id: str) -> list[BacklogGroup]:
    """Return the `standing` groups that are in no batch."""
    settled = select(groups.c.id).where(
        _mine(run_id), groups.c.batch.is_not(None), groups.c.state == "complete"
    )
    in_batches = set(conn.execute(settled).scalars())
    return [item for item in standing(conn, run_id) if item.id not in in_batches]


def requeued(conn: Connection, run_id: str, limit: int) -> Sequence[Requeued]:
    """Return the oldest groups whose tasks must be submitted again and have not been yet."""
    done = select(groups.c.replaces).where(_mine(run_id), groups.c.replaces.is_not(None))
    due = (groups.c.given_up == "requeued") & groups.c.ordinal.not_in(done)
    query = (
        select(groups.c.ordinal, tasks.c.key, groups.c.size)
        .join(tasks, tasks.c.id == groups.c.task_id)
        .where(_dropped(run_id), due)
    )
    # Sorted here because there are few: with ORDER BY, SQLite would scan all groups in order of ordinal.
    requeued_groups = [Requeued(*row) for row in conn.execute(query).all()]
    return sorted(requeued_groups, key=lambda item: item.ordinal)[:limit]


def replacements(conn: Connection, run_id: str) -> int:
    """Count the groups that were submitted to replace others."""
    query = select(func.count()).select_from(groups).where(_mine(run_id), groups.c.replaces.is_not(None))
    return int(conn.execute(query).scalar_one())


def _exclusion_reason(reason: GivenUp) -> str:
    """Return the reason under which the tokens of such a group are excluded."""
    return "too_stale" if reason == "requeued" else reason


def _mine(run_id: str) -> ColumnElement[bool]:
    return (groups.c.run_id == run_id) & (groups.c.purpose == _PURPOSE)


def _dropped(run_id: str) -> ColumnElement[bool]:
    """Groups that were given up all have the state `dropped`, which an index finds in a long run."""
    return _mine(run_id) & (groups.c.state == "dropped")
