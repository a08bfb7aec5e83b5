"""Recent rows, for tools that poll a run every second: the cost of a read depends only on what is new.

Row ids sort by creation time, so "created since" is a range of the primary key. A test checks that none of
these reads scans a table.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, func, select

from harnessgym.store.policies import PolicyVersion
from harnessgym.store.tables import calls, groups, policies, policy_versions, rollouts, trained

_AT_ONCE = 500
"""Maximum number of ids in one query."""


@dataclass(frozen=True, slots=True)
class RecentCall:
    """One call, finished or not."""

    id: str
    rollout_id: str
    created_at: float
    status: str
    worker: str
    """Worker that answered; empty until one has."""
    tokens: int
    """Sampled tokens; 0 before it is finished."""
    seconds: float
    """Seconds from the request to the last token; 0.0 before it is finished."""

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
    """What went wrong, as the stored string: a newer version's cause is counted too."""
    latencies: dict[str, float]
    """Seconds by stage, and seconds waited for the stage under `wait.STAGE`; empty before it has ended."""
    ended_at: float | None


@dataclass(frozen=True, slots=True)
class TrainedTokens:
    """One rollout's part in a step."""

    id: str
    step: int
    version: int
    tokens: int
    max_staleness: int


def id_at(t: float) -> str:
    """Return the lower bound of all ids created at a time (Unix seconds) or later."""
    return f"{max(0, int(t * 1_000_000)):014x}"


def calls_since(conn: Connection, t: float) -> list[RecentCall]:
    """Return the calls of all runs that began at a time (Unix seconds) or later, in order."""
    return [
        _call(row)
        for row in conn.execute(_calls().where(calls.c.id >= id_at(t)).order_by(calls.c.id)).mappings()
    ]


def calls_of(conn: Connection, ids: Collection[str]) -> list[RecentCall]:
    """Return calls by id."""
    return [
        _call(row)
        for some in _parts(ids)
        for row in conn.execute(_calls().where(calls.c.id.in_(some))).mappings()
    ]


def running(conn: Connection, run_id: str) -> list[str]:
    """Return the ids of the rollouts that nodes have claimed and that have not ended."""
    query = select(rollouts.c.id).where(rollouts.c.run_id == run_id, rollouts.c.status == "running")
    return list(conn.execute(query).scalars())


def with_status(conn: Connection, run_id: str, status: str) -> int:
    """Count the rollouts that have a status."""
    query = (
        select(func.count())
        .select_from(rollouts)
        .where(rollouts.c.run_id == run_id, rollouts.c.status == status)
    )
    return conn.execute(query).scalar_one()


def groups_in(conn: Connection, run_id: str, purpose: str, states: Sequence[str]) -> dict[str, int]:
    """Count the groups of a purpose in each of some states."""
    # One query per state: each is a range of the index, while GROUP BY would visit the groups of all states.
    query = (
        select(func.count()).select_from(groups).where(groups.c.run_id == run_id, groups.c.purpose == purpose)
    )
    return {state: conn.execute(query.where(groups.c.state == state)).scalar_one() for state in states}


def rollouts_of(conn: Connection, ids: Collection[str]) -> list[RecentRollout]:
    """Return rollouts by id."""
    columns = [rollouts.c[name] for name in RecentRollout.__dataclass_fields__]
    return [
        RecentRollout(**{**row, "latencies": row["latencies"] or {}})
        for some in _parts(ids)
        for row in conn.execute(select(*columns).where(rollouts.c.id.in_(some))).mappings()
    ]


def trained_since(conn: Connection, policy_id: str, after: str) -> list[TrainedTokens]:
    """Return the entries of a policy's ledger whose id is above `after`, in order; all for an empty id."""
    # Filtered by policy in Python: a condition on it could make the database prefer that index over the
    # primary key's range and read the policy's whole ledger.
    columns = [trained.c[name] for name in TrainedTokens.__dataclass_fields__]
    rows = conn.execute(
        select(trained.c.policy_id, *columns).where(trained.c.id > after).order_by(trained.c.id)
    ).all()
    return [TrainedTokens(*entry) for of_policy, *entry in rows if of_policy == policy_id]


def newest_versions(conn: Connection, policy_id: str, limit: int) -> list[PolicyVersion]:
    """Return the newest versions that are committed and not orphaned, oldest first."""
    columns = [policy_versions.c[name] for name in PolicyVersion.__dataclass_fields__]
    usable = [
        policy_versions.c.policy_id == policy_id,
        policy_versions.c.committed,
        ~policy_versions.c.orphaned,
    ]
    query = select(*columns).where(*usable).order_by(policy_versions.c.version.desc()).limit(limit)
    return [PolicyVersion(**row) for row in conn.execute(query).mappings()][::-1]


def policy_of(conn: Connection, run_id: str, name: str) -> str | None:
    """Return the id of a run's policy; None if there is none yet."""
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
