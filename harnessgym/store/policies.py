"""Policies and their versions.

A version number is never reused. Only committed versions are installed.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, func, insert, select, update

from harnessgym.store import runs
from harnessgym.store.tables import new_id, policies, policy_versions, rollouts, sessions


@dataclass(frozen=True, slots=True)
class PolicyVersion:
    """One published set of weights."""

    version: int
    parent_version: int | None
    kind: str
    """full or delta."""
    path: str
    step: int
    checksum: str
    bytes: int
    committed: bool
    orphaned: bool


def register(conn: Connection, run_id: str, name: str) -> str:
    """Return the id of a run's policy. Creates it if it is new."""
    runs.lock(conn, run_id)
    policy_id = conn.execute(
        select(policies.c.id).where(policies.c.run_id == run_id, policies.c.name == name)
    ).scalar()
    if policy_id is None:
        policy_id = new_id()
        conn.execute(insert(policies).values(id=policy_id, run_id=run_id, name=name))
    return str(policy_id)


def of_run(conn: Connection, run_id: str) -> dict[str, str]:
    """Return the ids of a run's policies by name, in order of registration."""
    query = select(policies.c.name, policies.c.id).where(policies.c.run_id == run_id).order_by(policies.c.id)
    return {row.name: row.id for row in conn.execute(query)}


def of_rollout(conn: Connection, rollout_id: str) -> dict[str, str]:
    """Return the policies of the run that a rollout belongs to. Accepts the id of a session too."""
    named = select(sessions.c.rollout_id).where(sessions.c.id == rollout_id)
    run_id = conn.execute(
        select(rollouts.c.run_id).where((rollouts.c.id == rollout_id) | rollouts.c.id.in_(named))
    ).scalar()
    return {} if run_id is None else of_run(conn, run_id)


def publish(conn: Connection, policy_id: str, version: PolicyVersion) -> None:
    """Record a version. Recording the same version again changes nothing.

    A different version under the same number raises an integrity error.
    """
    values = {name: getattr(version, name) for name in PolicyVersion.__dataclass_fields__}
    if get(conn, policy_id, version.version) != version:
        conn.execute(insert(policy_versions).values(id=new_id(), policy_id=policy_id, **values))


def get(conn: Connection, policy_id: str, version: int) -> PolicyVersion | None:
    """Return one version; None if there is no such version."""
    return next((item for item in versions(conn, policy_id) if item.version == version), None)


def latest(conn: Connection, policy_id: str) -> PolicyVersion | None:
    """Return the newest version that is committed and not orphaned; None if there is none."""
    usable = [
        policy_versions.c.policy_id == policy_id,
        policy_versions.c.committed,
        ~policy_versions.c.orphaned,
    ]
    row = (
        conn.execute(select(*_columns()).where(*usable).order_by(policy_versions.c.version.desc()).limit(1))
        .mappings()
        .first()
    )
    return None if row is None else PolicyVersion(**row)


def versions(conn: Connection, policy_id: str) -> list[PolicyVersion]:
    """Return all versions in order."""
    query = (
        select(*_columns())
        .where(policy_versions.c.policy_id == policy_id)
        .order_by(policy_versions.c.version)
    )
    return [PolicyVersion(**row) for row in conn.execute(query).mappings()]


def relocate(conn: Connection, policy_id: str, folder: Path) -> None:
    """Record that a policy's versions are now in this folder, under the same names."""
    for version in versions(conn, policy_id):
        path = str(folder / Path(version.path).name)
        if path != version.path:
            same = (policy_versions.c.policy_id == policy_id) & (policy_versions.c.version == version.version)
            conn.execute(update(policy_versions).where(same).values(path=path))


def next_version(conn: Connection, policy_id: str) -> int:
    """Return a number that no version has had."""
    # Orphaned versions count too: their number must not come to mean other weights.
    query = select(func.max(policy_versions.c.version)).where(policy_versions.c.policy_id == policy_id)
    newest = conn.execute(query).scalar()
    return 0 if newest is None else int(newest) + 1


def orphan_after(conn: Connection, policy_id: str, version: int) -> int:
    """Mark every version above `version` as orphaned: off the surviving chain. Returns how many."""
    later = (
        (policy_versions.c.policy_id == policy_id)
        & (policy_versions.c.version > version)
        & ~policy_versions.c.orphaned
    )
    return conn.execute(update(policy_versions).where(later).values(orphaned=True)).rowcount


def _columns() -> list[Any]:
    return [policy_versions.c[name] for name in PolicyVersion.__dataclass_fields__]
