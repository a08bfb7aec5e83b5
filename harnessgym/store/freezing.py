"""Frozen rollouts: their rows refuse every change until they are thawed.

Triggers (`views`) enforce this in the database, so that plain SQL is refused too.
"""

from collections.abc import Sequence

from sqlalchemy import Connection, RowMapping, select, update

from harnessgym.errors import StoreError
from harnessgym.store import sessions
from harnessgym.store.tables import groups, rollouts, runs

_SHOWN = 3
"""How many rollouts an error message names."""
_UNFINISHED = ("pending", "running")


def freeze(conn: Connection, rollout_ids: Sequence[str]) -> int:
    """Seal the sessions of rollouts and freeze the rollouts. Returns how many were not frozen before.

    Raises `StoreError` and freezes none if the run has yet to write to one of them. That is so if the rollout
    is not finished, if its group is open (it may still be dropped), or if the group waits to be trained.
    """
    rows = _locked(conn, rollout_ids)
    _refuse([row["id"] for row in rows if row["status"] in _UNFINISHED], "not finished")
    going_on = [row for row in rows if row["run_status"] != "done"]
    _refuse(
        [row["id"] for row in going_on if row["state"] == "open"],
        "in groups of which others are not finished",
    )
    waiting = [row["id"] for row in going_on if row["state"] == "complete" and row["purpose"] == "train"]
    _refuse(waiting, "waiting to be trained")
    # Sealing writes to the sessions, which the triggers refuse for a frozen rollout. So seal first.
    fresh = [row["id"] for row in rows if not row["frozen"]]
    for rollout_id in fresh:
        for session_id in sessions.of_rollout(conn, rollout_id):
            sessions.seal(conn, session_id)
    _set(conn, fresh, frozen=True)
    return len(fresh)


def thaw(conn: Connection, rollout_ids: Sequence[str]) -> int:
    """Allow changes to rollouts again. Their sessions stay sealed. Returns how many were frozen."""
    frozen_ids = [row["id"] for row in _locked(conn, rollout_ids) if row["frozen"]]
    _set(conn, frozen_ids, frozen=False)
    return len(frozen_ids)


def _locked(conn: Connection, rollout_ids: Sequence[str]) -> list[RowMapping]:
    """Lock rollouts until the transaction ends. Returns what decides whether they may be frozen.

    Raises `StoreError` if one of them does not exist.
    """
    # Ordered by id so that two callers lock the rows in the same order and cannot deadlock.
    own = [rollouts.c.id, rollouts.c.status, rollouts.c.frozen, groups.c.purpose, groups.c.state]
    query = select(*own, runs.c.status.label("run_status")).join(groups, groups.c.id == rollouts.c.group_id)
    query = (
        query.join(runs, runs.c.id == rollouts.c.run_id).order_by(rollouts.c.id).with_for_update(of=rollouts)
    )
    rows = list[RowMapping]()
    for start in range(0, len(rollout_ids), 5_000):
        rows += (
            conn.execute(query.where(rollouts.c.id.in_(rollout_ids[start : start + 5_000]))).mappings().all()
        )
    missing = set(rollout_ids) - {row["id"] for row in rows}
    if missing:
        raise StoreError(f"The trace database has no rollout {min(missing)!r}.")
    return rows


def _set(conn: Connection, rollout_ids: Sequence[str], *, frozen: bool) -> None:
    for start in range(0, len(rollout_ids), 5_000):
        some = rollouts.c.id.in_(rollout_ids[start : start + 5_000])
        conn.execute(update(rollouts).where(some).values(frozen=frozen))


def _refuse(rollout_ids: Sequence[str], why: str) -> None:
    if rollout_ids:
        named = ", ".join(sorted(rollout_ids)[:_SHOWN]) + (", ..." if len(rollout_ids) > _SHOWN else "")
        raise StoreError(
            f"{len(rollout_ids)} of the rollouts are {why} ({named}): their run has yet to write to them. "
            "Nothing was frozen. Freeze them when the run is done, or choose others."
        )
