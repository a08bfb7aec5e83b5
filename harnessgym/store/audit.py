"""The rows of runs as they are stored, for readers that check them against each other.

Nothing is decoded and no value is trusted: a column may hold values that HarnessGym would never write. Token
accounting and the verification of a store use these records.
"""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Column, Connection, Select, case, exists, func, select

from harnessgym.store.tables import (
    calls,
    exclusions,
    groups,
    metadata,
    policies,
    rollouts,
    routed_experts,
    segments,
    sessions,
    trained,
)


@dataclass(frozen=True, slots=True)
class DanglingReference:
    """A row that refers to a row that is not there."""

    table: str
    row: str
    target: str
    """The table that it refers to."""


@dataclass(frozen=True, slots=True)
class AuditedSession:
    """One session."""

    id: str
    rollout_id: str
    calls_at_seal: int | None
    policy_id: str
    """The policy of its rollout."""


@dataclass(frozen=True, slots=True)
class AuditedCall:
    """One call of a session."""

    id: str
    rollout_id: str
    ordinal: int
    parent_call_id: str | None
    parent_evidence: str
    kind: str
    status: str
    prompt_len: int
    prompt_hash: str
    prompt_segment: str
    completion_len: int | None
    completion_hash: str | None
    completion_segment: str | None
    version_spans: Any
    usage: Any
    policy_id: str | None
    """The policy that was called; None if it is the rollout's own."""


@dataclass(frozen=True, slots=True)
class AuditedSegment:
    """One segment of a session."""

    id: str
    kind: str
    parent_id: str | None
    hash: str
    length: int
    ids: bytes
    """The ids outside of `copies`."""
    logprobs: bytes | None
    copies: list[list[Any]] | None
    """[place, other segment, its place there, number] of ids that are stored with other segments."""


@dataclass(frozen=True, slots=True)
class AuditedExperts:
    """The routed experts of a call."""

    call_id: str
    start: int
    tokens: int
    layers: int
    top_k: int
    width: int
    experts: bytes
    """Compressed."""


@dataclass(frozen=True, slots=True)
class AuditedRollout:
    """One rollout of a run."""

    id: str
    policy_id: str
    purpose: str
    group_state: str


@dataclass(frozen=True, slots=True)
class AuditedCompletion:
    """The completion of a call."""

    call_id: str
    rollout_id: str
    policy_id: str
    """The policy that was called."""
    length: int
    """0 if the call has no completion."""
    segment_id: str | None
    version_spans: Any


@dataclass(frozen=True, slots=True)
class ExcludedRange:
    """Completion tokens [start, end) of a call that are not trained."""

    rollout_id: str
    call_id: str
    start: int
    end: int
    reason: str


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """One rollout's part in a step of a policy."""

    id: str
    rollout_id: str
    policy_id: str
    step: int
    version: int
    tokens: int


@dataclass(frozen=True, slots=True)
class AuditedGroup:
    """A training group that has ended, and how many of its rollouts were graded."""

    id: str
    state: str
    given_up: str | None
    size: int
    min_members: int
    graded: int


def dangling_references(conn: Connection) -> list[DanglingReference]:
    """Look up every foreign key of every table. A database enforces them, unless someone turned that off."""
    out = []
    for table in metadata.sorted_tables:
        key = table.primary_key.columns.values()[0]
        for reference in table.foreign_keys:
            target = reference.column.table
            parent = target.alias("parent")
            there = exists().where(parent.c[reference.column.name] == reference.parent)
            dangling = select(key).where(reference.parent.is_not(None), ~there)
            out += [
                DanglingReference(table.name, row, target.name) for row in conn.execute(dangling).scalars()
            ]
    return out


def policies_of(conn: Connection, run_ids: list[str]) -> list[str]:
    """Return the ids of the runs' policies."""
    return list(conn.execute(select(policies.c.id).where(policies.c.run_id.in_(run_ids))).scalars())


def sessions_of(conn: Connection, run_ids: list[str]) -> list[AuditedSession]:
    """Return the sessions of runs in order of opening."""
    columns = (sessions.c.id, sessions.c.rollout_id, sessions.c.calls_at_seal, rollouts.c.policy_id)
    query = select(*columns).join(rollouts, rollouts.c.id == sessions.c.rollout_id)
    query = query.where(rollouts.c.run_id.in_(run_ids)).order_by(sessions.c.created_at, sessions.c.id)
    return [AuditedSession(*row) for row in conn.execute(query)]


def calls_of(conn: Connection, session_id: str) -> list[AuditedCall]:
    """Return a session's calls in order of their ordinals."""
    columns = (calls.c[name] for name in AuditedCall.__dataclass_fields__)
    query = select(*columns).where(calls.c.session_id == session_id).order_by(calls.c.ordinal)
    return [AuditedCall(*row) for row in conn.execute(query)]


def segments_of(conn: Connection, session_id: str) -> list[AuditedSegment]:
    """Return a session's segments in order of creation."""
    columns = (segments.c[name] for name in AuditedSegment.__dataclass_fields__)
    query = select(*columns).where(segments.c.session_id == session_id)
    query = query.order_by(segments.c.created_at, segments.c.id)
    return [AuditedSegment(*row) for row in conn.execute(query)]


def experts_of(conn: Connection, session_id: str) -> list[AuditedExperts]:
    """Return the routed experts of a session's calls, in order of their ordinals."""
    columns = (routed_experts.c[name] for name in AuditedExperts.__dataclass_fields__)
    query = select(*columns).join(calls, calls.c.id == routed_experts.c.call_id)
    query = query.where(calls.c.session_id == session_id).order_by(calls.c.ordinal)
    return [AuditedExperts(*row) for row in conn.execute(query)]


def rollouts_of(conn: Connection, run_id: str) -> list[AuditedRollout]:
    """Return a run's rollouts."""
    query = select(rollouts.c.id, rollouts.c.policy_id, groups.c.purpose, groups.c.state).join(
        groups, groups.c.id == rollouts.c.group_id
    )
    return [AuditedRollout(*row) for row in conn.execute(query.where(rollouts.c.run_id == run_id))]


def sampled(conn: Connection, run_id: str, purpose: str | None = None) -> list[AuditedCompletion]:
    """Return the completions of a run's calls, of the groups of one purpose or of all."""
    query = select(
        calls.c.id,
        calls.c.rollout_id,
        func.coalesce(calls.c.policy_id, rollouts.c.policy_id),
        func.coalesce(calls.c.completion_len, 0),
        calls.c.completion_segment,
        calls.c.version_spans,
    )
    return [
        AuditedCompletion(*row) for row in conn.execute(_of_run(query, calls.c.rollout_id, run_id, purpose))
    ]


def excluded(conn: Connection, run_id: str, purpose: str | None = None) -> list[ExcludedRange]:
    """Return the ranges that are excluded in a run, in the groups of one purpose or in all."""
    query = select(*(exclusions.c[name] for name in ExcludedRange.__dataclass_fields__))
    return [
        ExcludedRange(*row) for row in conn.execute(_of_run(query, exclusions.c.rollout_id, run_id, purpose))
    ]


def ledger(conn: Connection, run_id: str, purpose: str | None = None) -> list[LedgerEntry]:
    """Return the ledger of a run in order of version, of the groups of one purpose or of all."""
    query = select(*(trained.c[name] for name in LedgerEntry.__dataclass_fields__)).order_by(
        trained.c.version
    )
    return [LedgerEntry(*row) for row in conn.execute(_of_run(query, trained.c.rollout_id, run_id, purpose))]


def training_groups(conn: Connection, run_id: str) -> list[AuditedGroup]:
    """Return a run's training groups that have ended.

    Leaves out groups some of whose rollouts have been removed from the store since.
    """
    columns = [groups.c[name] for name in AuditedGroup.__dataclass_fields__ if name in groups.c]
    graded = func.sum(case((rollouts.c.status == "finished", 1), else_=0))
    query = select(*columns, graded).join(rollouts, rollouts.c.group_id == groups.c.id).group_by(*columns)
    whole = func.count(rollouts.c.slot.distinct()) == groups.c.size
    ended = (groups.c.run_id == run_id) & (groups.c.purpose == "train") & (groups.c.state != "open")
    return [AuditedGroup(*tuple(row)) for row in conn.execute(query.where(ended).having(whole))]


def _of_run(query: Select[Any], rollout_id: Column[Any], run_id: str, purpose: str | None) -> Select[Any]:
    """Narrow a query to the rollouts of a run, in its groups of a purpose if one is given."""
    query = query.join(rollouts, rollouts.c.id == rollout_id)
    if purpose is None:
        return query.where(rollouts.c.run_id == run_id)
    query = query.join(groups, groups.c.id == rollouts.c.group_id)
    return query.where(groups.c.run_id == run_id, groups.c.purpose == purpose)
