"""What happened of late, for whoever looks at a run every second: each read costs what is new, not what the
store holds.

Row ids sort by the time they were made, so "made since" is a range of the primary key. A test holds that none
of these reads scans a table.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, func, select

from harnessgym.store.policies import PolicyVersion
from harnessgym.store.tables import calls, groups, policies, policy_versions, rollouts, trained

_AT_ONCE = 500
"""Ids in one question."""


@dataclass(frozen=True, slots=True)
class RecentCall:
    """One call, finished or not."""

    id: str
    rollout_id: str
    created_at: float
    status: str
    worker: str
    """Worker that answered; empty while none has."""
    tokens: int
    """Sampled tokens; 0 before it is finished."""
    seconds: float
    """From the request to the last token; 0.0 before it is finished."""

    @property
    def open(self) -> bool:
        """Whether it is still being answered."""
        return self.status == "intent"


@dataclass(frozen=True, slots=True)
class RecentRollout:
    """One rollout, ended or not."""

    id: str
    run_id: str
    status: str
    cause: str | None
    """What went wrong, as it is stored: whoever only counts causes need not know them."""
    latencies: dict[str, float]
    """Seconds by stage, and those waited for it under `wait.STAGE`; empty before it has ended."""
    ended_at: float | None


@dataclass(frozen=True, slots=True)
class TrainedTokens:
    """One rollout's share in a step."""

    id: str
    step: int
    version: int
    tokens: int
    max_staleness: int


def id_at(t: float) -> str:
    """What ids made at a time (Unix seconds) or later are not below."""
    return f"{max(0, int(t * 1_000_000)):014x}"


def calls_since(conn: Connection, t: float) -> list[RecentCall]:
    """Calls of all runs begun at a time or later, in order."""
    return [
        _call(row)
        for row in conn.execute(_calls().where(calls.c.id >= id_at(t)).order_by(calls.c.id)).mappings()
    ]


def calls_of(conn: Connection, ids: Collection[str]) -> list[RecentCall]:
    """Calls by id."""
    return [
        _call(row)
        for some in _parts(ids)
        for row in conn.execute(_calls().where(calls.c.id.in_(some))).mappings()
    ]


def running(conn: Connection, run_id: str) -> list[str]:
    """Ids of the rollouts that nodes have claimed and that have not ended."""
    query = select(rollouts.c.id).where(rollouts.c.run_id == run_id, rollouts.c.status == "running")
    return list(conn.execute(query).scalars())


def with_status(conn: Connection, run_id: str, status: str) -> int:
    """How many rollouts have a status."""
    query = (
        select(func.count())
        .select_from(rollouts)
        .where(rollouts.c.run_id == run_id, rollouts.c.status == status)
    )
    return conn.execute(query).scalar_one()


def groups_in(conn: Connection, run_id: str, purpose: str, states: Sequence[str]) -> dict[str, int]:
    """How many groups of a purpose are in each of some states."""
    query = (
        select(func.count()).select_from(groups).where(groups.c.run_id == run_id, groups.c.purpose == purpose)
    )
    return {state: conn.execute(query.where(groups.c.state == state)).scalar_one() for state in states}


def rollouts_of(conn: Connection, ids: Collection[str]) -> list[RecentRollout]:
    """Rollouts by id."""
    columns = [rollouts.c[name] for name in RecentRollout.__dataclass_fields__]
    return [
        RecentRollout(**{**row, "latencies": row["latencies"] or {}})
        for some in _parts(ids)
        for row in conn.execute(select(*columns).where(rollouts.c.id.in_(some))).mappings()
    ]


def trained_since(conn: Connection, policy_id: str, after: str) -> list[TrainedTokens]:
    """Entries of a policy's ledger whose id is above `after`, in order; all of them for the empty id."""
    columns = [trained.c[name] for name in TrainedTokens.__dataclass_fields__]
    found = conn.execute(
        select(trained.c.policy_id, *columns).where(trained.c.id > after).order_by(trained.c.id)
    ).all()
    return [TrainedTokens(*entry) for of_policy, *entry in found if of_policy == policy_id]


def newest_versions(conn: Connection, policy_id: str, limit: int) -> list[PolicyVersion]:
    """The newest versions that are committed and not orphaned, oldest first."""
    columns = [policy_versions.c[name] for name in PolicyVersion.__dataclass_fields__]
    usable = [
        policy_versions.c.policy_id == policy_id,
        policy_versions.c.committed,
        ~policy_versions.c.orphaned,
    ]
    query = select(*columns).where(*usable).order_by(policy_versions.c.version.desc()).limit(limit)
    return [PolicyVersion(**row) for row in conn.execute(query).mappings()][::-1]


def policy_of(conn: Connection, run_id: str, name: str) -> str | None:
    """The id of a run's policy, None before there is one."""
    return conn.execute(
        select(policies.c.id).where(policies.c.run_id == run_id, policies.c.name == name)
    ).scalar()


def _calls() -> Any:
    own = ("id", "rollout_id", "created_at", "status", "completion_len", "timings")
    return select(*(calls.c[name] for name in own), calls.c.upstream.label("worker"))


def _call(row: Any) -> RecentCall:
    own = {name: row[name] for name in ("id", "rollout_id", "created_at", "status", "worker")}
    return RecentCall(
        **own, tokens=row["completion_len"] or 0, seconds=float((row["timings"] or {}).get("total_s", 0.0))
    )


def _parts(ids: Collection[str]) -> list[list[str]]:
    ordered = sorted(ids)
    return [ordered[start : start + _AT_ONCE] for start in range(0, len(ordered), _AT_ONCE)]
