"""Counts over a run, for dashboards and summaries."""

from sqlalchemy import Connection, func, select

from harnessgym.store.tables import calls, groups, rollouts


def tokens_sampled(conn: Connection, run_id: str) -> int:
    """Count the completion tokens of all calls of a run."""
    query = select(func.coalesce(func.sum(calls.c.completion_len), 0)).join(
        rollouts, rollouts.c.id == calls.c.rollout_id
    )
    return int(conn.execute(query.where(rollouts.c.run_id == run_id)).scalar_one())


def finished_rollouts(conn: Connection, run_id: str, purpose: str | None = None) -> int:
    """Count the rollouts with a valid or tampered verdict."""
    query = select(func.count()).select_from(rollouts).join(groups, groups.c.id == rollouts.c.group_id)
    wanted = [rollouts.c.run_id == run_id, rollouts.c.status == "finished"]
    if purpose is not None:
        wanted.append(groups.c.purpose == purpose)
    return conn.execute(query.where(*wanted)).scalar_one()


def failed_rollouts(conn: Connection, run_id: str, purpose: str) -> dict[str, int]:
    """Count the attempts that ended with an infrastructure failure, by cause."""
    query = select(rollouts.c.cause, func.count()).join(groups, groups.c.id == rollouts.c.group_id)
    wanted = [rollouts.c.run_id == run_id, groups.c.purpose == purpose, rollouts.c.status == "failed"]
    counted = query.where(*wanted).group_by(rollouts.c.cause).order_by(rollouts.c.cause)
    return {cause or "unknown": count for cause, count in conn.execute(counted).all()}


def slots(conn: Connection, run_id: str, purpose: str) -> int:
    """Count the slots of a purpose's groups. Further attempts at a slot do not count."""
    query = select(func.coalesce(func.sum(groups.c.size), 0))
    return int(conn.execute(query.where(groups.c.run_id == run_id, groups.c.purpose == purpose)).scalar_one())


def stop_reasons(conn: Connection, run_id: str) -> dict[str, int]:
    """Count the ended rollouts by stop reason."""
    query = select(rollouts.c.stop_reason, func.count()).where(rollouts.c.run_id == run_id)
    ended = query.where(rollouts.c.stop_reason.is_not(None)).group_by(rollouts.c.stop_reason)
    return dict(conn.execute(ended).all())
