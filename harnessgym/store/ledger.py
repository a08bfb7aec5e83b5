"""The ledger: which rollout was trained in which step, into which version.

`commit_step` is the one transaction that makes a training step count. It is idempotent: a trainer that dies
before or after it replays the step from its checkpoint.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, Select, delete, func, insert, select, update

from harnessgym.store import advantages, policies, rollouts, runs
from harnessgym.store.advantages import AdvantageRange
from harnessgym.store.backend import insert_into
from harnessgym.store.policies import PolicyVersion
from harnessgym.store.tables import calls, exclusions, groups, new_id, policy_versions, trained
from harnessgym.store.tables import policies as policies_table
from harnessgym.store.tables import rollouts as rollouts_table

RUN_ENDED = "run_ended"
"""Why tokens are excluded that no step had trained at the end of their run."""
_made = (policy_versions.c.policy_id == trained.c.policy_id) & (
    policy_versions.c.version == trained.c.version
)


@dataclass(frozen=True, slots=True)
class TrainedRollout:
    """One rollout's part in a step."""

    rollout_id: str
    tokens: int
    max_staleness: int
    advantages: tuple[AdvantageRange, ...] = ()
    """Of every trained token."""


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
    """Everything that one step writes to the store."""

    version: PolicyVersion
    group_ids: tuple[str, ...]
    trained: tuple[TrainedRollout, ...]
    excluded: tuple[ExcludedTokens, ...]


@dataclass(frozen=True, slots=True)
class TrainedGroup:
    """A group's part in a step."""

    id: str
    ordinal: int
    version: int
    """The policy version that it was trained into."""
    max_staleness: int


def commit_step(conn: Connection, policy_id: str, record: StepRecord) -> None:
    """Publish the version, write the ledger, and mark groups consumed once all policies trained on them.

    Calling it again changes nothing.
    """
    # The version's row is written in the same transaction as all below, so it proves that the step was
    # committed. A trainer that died after the commit replays the step and ends here.
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
    """Count the calls in the rollouts of a policy's step, by the policy that was called.

    Side calls do not count.
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
    """Return up to `limit` of the rollouts that a policy's step trained on."""
    return list(conn.execute(_of_step(policy_id, step).order_by(trained.c.rollout_id).limit(limit)).scalars())


def policy_calls(conn: Connection, rollout_id: str) -> list[str]:
    """Return the ids of a rollout's calls in order, without side calls."""
    query = select(calls.c.id).where(calls.c.rollout_id == rollout_id, calls.c.kind != "side")
    return list(conn.execute(query.order_by(calls.c.ordinal)).scalars())


def abandon_after(conn: Connection, policy_id: str, version: int) -> int:
    """Continue from an earlier version: orphan the later ones and release the groups only they consumed.

    Returns how many versions were orphaned.
    """
    _others(conn, policy_id)
    given_up = policies.orphan_after(conn, policy_id, version)
    if given_up:
        # A group that a surviving version was trained on too stays consumed. Releasing it would train it
        # twice on the surviving chain.
        members = select(rollouts_table.c.group_id).join(trained, trained.c.rollout_id == rollouts_table.c.id)
        later = members.where(trained.c.policy_id == policy_id, trained.c.version > version)
        kept = members.join(policy_versions, _made).where(
            trained.c.policy_id == policy_id, ~policy_versions.c.orphaned
        )
        consumed = (groups.c.state == "consumed") & groups.c.id.in_(later) & groups.c.id.not_in(kept)
        conn.execute(update(groups).where(consumed).values(state="complete"))
    return given_up


def trained_into(conn: Connection, policy_id: str, versions: Sequence[int]) -> list[TrainedGroup]:
    """Return the groups that were trained into some versions, once per version, in order."""
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


def latest_training(conn: Connection, rollout_id: str) -> dict[str, str]:
    """Return the id of a rollout's latest ledger row by policy. Steps into orphaned versions do not count."""
    counts = (trained.c.rollout_id == rollout_id, ~policy_versions.c.orphaned)
    query = select(trained.c.policy_id, trained.c.id).join(policy_versions, _made).where(*counts)
    # In order of steps, so that the latest one of a policy overwrites those before it.
    return {row.policy_id: row.id for row in conn.execute(query.order_by(trained.c.step, trained.c.id))}


def _others(conn: Connection, policy_id: str) -> set[str]:
    """Return the run's other policies, and lock the run if there are any."""
    run_id = conn.execute(
        select(policies_table.c.run_id).where(policies_table.c.id == policy_id)
    ).scalar_one()
    of_run = select(policies_table.c.id).where(
        policies_table.c.run_id == run_id, policies_table.c.id != policy_id
    )
    others = set(conn.execute(of_run).scalars())
    # Two policies that commit at once would each see the other's step missing, and neither would mark the
    # group consumed. The lock makes the second see the first's ledger.
    if others:
        runs.lock(conn, run_id)
    return others


def _awaited(conn: Connection, others: set[str], group_id: str) -> bool:
    """Return whether one of the other policies has yet to train on a group. Orphaned steps do not count."""
    if not others:
        return False
    done = (
        select(trained.c.policy_id)
        .join(rollouts_table, rollouts_table.c.id == trained.c.rollout_id)
        .join(policy_versions, _made)
        .where(rollouts_table.c.group_id == group_id, ~policy_versions.c.orphaned)
        .distinct()
    )
    return not others <= set(conn.execute(done).scalars())


def exclude_tokens(conn: Connection, items: Sequence[ExcludedTokens]) -> None:
    """Record why tokens are not trained. Tokens that are excluded already keep their first reason."""
    for item in items:
        values = {name: getattr(item, name) for name in ExcludedTokens.__dataclass_fields__}
        conn.execute(insert_into(conn)(exclusions).values(id=new_id(), **values).on_conflict_do_nothing())


def readmit_rest(conn: Connection, run_id: str, reason: str = RUN_ENDED) -> None:
    """Remove the exclusions with a reason from groups that may still be trained, as the run continues."""
    waiting = (groups.c.run_id == run_id) & groups.c.state.in_(("open", "complete"))
    of_groups = select(rollouts_table.c.id).join(groups, groups.c.id == rollouts_table.c.group_id)
    rest = (exclusions.c.reason == reason) & exclusions.c.rollout_id.in_(of_groups.where(waiting))
    conn.execute(delete(exclusions).where(rest))


def steps(conn: Connection, policy_id: str) -> list[int]:
    """Return the steps that are in the ledger, in order."""
    query = select(trained.c.step).where(trained.c.policy_id == policy_id).distinct().order_by(trained.c.step)
    return list(conn.execute(query).scalars())


def _of_step(policy_id: str, step: int) -> Select[str]:
    return select(trained.c.rollout_id).where(trained.c.policy_id == policy_id, trained.c.step == step)
