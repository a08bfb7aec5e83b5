"""The ledger: which rollout was trained in which step, into which version.

`commit_step` is the one transaction that makes a training step count. It is idempotent: a trainer that dies
around it replays it from its checkpoint.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, Select, func, insert, select, update

from harnessgym.store import advantages, policies, rollouts, runs
from harnessgym.store.advantages import AdvantageRange
from harnessgym.store.backend import insert_into
from harnessgym.store.policies import PolicyVersion
from harnessgym.store.tables import calls, exclusions, groups, new_id, policy_versions, trained
from harnessgym.store.tables import policies as policies_table
from harnessgym.store.tables import rollouts as rollouts_table

_made = (policy_versions.c.policy_id == trained.c.policy_id) & (
    policy_versions.c.version == trained.c.version
)


@dataclass(frozen=True, slots=True)
class TrainedRollout:
    """One rollout's share in a step."""

    rollout_id: str
    tokens: int
    max_staleness: int
    advantages: tuple[AdvantageRange, ...] = ()
    """Of each of the tokens."""


@dataclass(frozen=True, slots=True)
class ExcludedTokens:
    """Completion tokens [start, end) of a call that are not trained, and why."""

    rollout_id: str
    call_id: str
    start: int
    end: int
    reason: str


@dataclass(frozen=True, slots=True)
class StepRecord:
    """Everything the store learns from one step."""

    version: PolicyVersion
    group_ids: tuple[str, ...]
    trained: tuple[TrainedRollout, ...]
    excluded: tuple[ExcludedTokens, ...]


@dataclass(frozen=True, slots=True)
class TrainedGroup:
    """A group's share in a step."""

    id: str
    ordinal: int
    version: int
    """What it was trained into."""
    max_staleness: int


def commit_step(conn: Connection, policy_id: str, record: StepRecord) -> None:
    """Publish the version, write the ledger, mark the groups consumed that every policy of the run has
    trained on.

    Doing it again changes nothing.
    """
    if policies.get(conn, policy_id, record.version.version) is not None:
        return
    others = _others(conn, policy_id)
    policies.publish(conn, policy_id, record.version)
    version = record.version.version
    step = record.version.step
    ranges = {new_id(): item.advantages for item in record.trained}
    for row_id, item in zip(ranges, record.trained, strict=True):
        conn.execute(
            insert(trained).values(
                id=row_id,
                rollout_id=item.rollout_id,
                policy_id=policy_id,
                step=step,
                version=version,
                tokens=item.tokens,
                max_staleness=item.max_staleness,
            )
        )
    advantages.add(conn, ranges)
    exclude_tokens(conn, record.excluded)
    for group_id in record.group_ids:
        if not _awaited(conn, others, group_id):
            rollouts.set_group_state(conn, group_id, "consumed")


def calls_of_step(conn: Connection, policy_id: str, step: int) -> dict[str, int]:
    """Calls in the rollouts that a policy's step was about, side calls left out, by the policy that was
    asked.
    """
    asked = func.coalesce(calls.c.policy_id, rollouts_table.c.policy_id)
    query = (
        select(asked, func.count())
        .select_from(calls)
        .join(rollouts_table, rollouts_table.c.id == calls.c.rollout_id)
        .where(calls.c.kind != "side", rollouts_table.c.id.in_(_of_step(policy_id, step)))
    )
    return dict(conn.execute(query.group_by(asked)).all())


def rollouts_of_step(conn: Connection, policy_id: str, step: int, limit: int) -> list[str]:
    """Some of the rollouts that a policy's step was about."""
    return list(conn.execute(_of_step(policy_id, step).order_by(trained.c.rollout_id).limit(limit)).scalars())


def policy_calls(conn: Connection, rollout_id: str) -> list[str]:
    """A rollout's calls that a policy answers as itself: side calls are left out."""
    query = select(calls.c.id).where(calls.c.rollout_id == rollout_id, calls.c.kind != "side")
    return list(conn.execute(query.order_by(calls.c.ordinal)).scalars())


def abandon_after(conn: Connection, policy_id: str, version: int) -> int:
    """Go on from an earlier version: orphan the later ones, and give back the groups only they consumed.
    Returns how many.
    """
    _others(conn, policy_id)
    given_up = policies.orphan_after(conn, policy_id, version)
    if given_up:
        members = select(rollouts_table.c.group_id).join(trained, trained.c.rollout_id == rollouts_table.c.id)
        later = members.where(trained.c.policy_id == policy_id, trained.c.version > version)
        kept = members.join(policy_versions, _made).where(
            trained.c.policy_id == policy_id, ~policy_versions.c.orphaned
        )
        consumed = (groups.c.state == "consumed") & groups.c.id.in_(later) & groups.c.id.not_in(kept)
        conn.execute(update(groups).where(consumed).values(state="complete"))
    return given_up


def trained_into(conn: Connection, policy_id: str, versions: Sequence[int]) -> list[TrainedGroup]:
    """The groups that were trained into some versions, once for each, in order."""
    columns = (groups.c.id, groups.c.ordinal, trained.c.version)
    query = (
        select(*columns, func.max(trained.c.max_staleness))
        .join(rollouts_table, rollouts_table.c.id == trained.c.rollout_id)
        .join(groups, groups.c.id == rollouts_table.c.group_id)
        .where(trained.c.policy_id == policy_id, trained.c.version.in_(versions))
        .group_by(*columns)
        .order_by(trained.c.version, groups.c.ordinal)
    )
    return [TrainedGroup(*row) for row in conn.execute(query)]


def _others(conn: Connection, policy_id: str) -> set[str]:
    """The run's other policies. If there are any, the run is locked: two that commit at one time must see
    each other.
    """
    run_id = conn.execute(
        select(policies_table.c.run_id).where(policies_table.c.id == policy_id)
    ).scalar_one()
    of_run = select(policies_table.c.id).where(
        policies_table.c.run_id == run_id, policies_table.c.id != policy_id
    )
    others = set(conn.execute(of_run).scalars())
    if others:
        runs.lock(conn, run_id)
    return others


def _awaited(conn: Connection, others: set[str], group_id: str) -> bool:
    """Whether one of some policies has not trained on a group, or only in steps that are given up."""
    if not others:
        return False
    same = (policy_versions.c.policy_id == trained.c.policy_id) & (
        policy_versions.c.version == trained.c.version
    )
    done = (
        select(trained.c.policy_id)
        .join(rollouts_table, rollouts_table.c.id == trained.c.rollout_id)
        .join(policy_versions, same)
        .where(rollouts_table.c.group_id == group_id, ~policy_versions.c.orphaned)
        .distinct()
    )
    return not others <= set(conn.execute(done).scalars())


def exclude_tokens(conn: Connection, items: Sequence[ExcludedTokens]) -> None:
    """Record why tokens are not trained; what is recorded already keeps its first reason."""
    for item in items:
        values = {name: getattr(item, name) for name in ExcludedTokens.__dataclass_fields__}
        conn.execute(insert_into(conn)(exclusions).values(id=new_id(), **values).on_conflict_do_nothing())


def steps(conn: Connection, policy_id: str) -> list[int]:
    """Steps that are in the ledger, in order."""
    query = select(trained.c.step).where(trained.c.policy_id == policy_id).distinct().order_by(trained.c.step)
    return list(conn.execute(query).scalars())


def _of_step(policy_id: str, step: int) -> Select[str]:
    return select(trained.c.rollout_id).where(trained.c.policy_id == policy_id, trained.c.step == step)
