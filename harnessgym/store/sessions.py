"""Sessions: each has a key, its sampling and limits, and may be sealed."""

import hashlib
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, func, insert, select, update

from harnessgym.store.clock import now
from harnessgym.store.tables import calls, new_id, sessions


@dataclass(frozen=True, slots=True)
class SessionRow:
    """One stored session."""

    id: str
    rollout_id: str
    key_hash: str
    sampling: dict[str, Any]
    """Fields of `message.Sampling`."""
    history: str
    """keep or template."""
    limits: dict[str, Any]
    version_pin: int | None
    options: dict[str, Any]
    """Fields of `SessionOptions`."""
    sealed: bool
    calls_at_seal: int | None
    age_s: float = field(default=0.0, compare=False)
    """Seconds since it was opened, at the time the row was read."""


def hash_key(key: str) -> str:
    """Return the hash of a session key. The store never holds the key itself."""
    return hashlib.sha256(key.encode()).hexdigest()


def add(
    conn: Connection,
    rollout_id: str,
    key: str,
    *,
    sampling: dict[str, Any],
    history: str = "keep",
    limits: dict[str, Any] | None = None,
    version_pin: int | None = None,
    options: dict[str, Any] | None = None,
) -> SessionRow:
    """Open a session for a rollout under a key, which must be unguessable."""
    row = SessionRow(
        id=new_id(),
        rollout_id=rollout_id,
        key_hash=hash_key(key),
        sampling=sampling,
        history=history,
        limits=limits or {},
        version_pin=version_pin,
        options=options or {},
        sealed=False,
        calls_at_seal=None,
    )
    conn.execute(insert(sessions).values({name: getattr(row, name) for name in _COLUMNS}))
    return row


def by_key(conn: Connection, key: str) -> SessionRow | None:
    """Return the session of a key; None if there is none."""
    return _one(conn, sessions.c.key_hash == hash_key(key))


def get(conn: Connection, session_id: str) -> SessionRow | None:
    """Return a session by id; None if there is none."""
    return _one(conn, sessions.c.id == session_id)


def of_rollout(conn: Connection, rollout_id: str) -> list[str]:
    """Return the ids of a rollout's sessions in order of opening."""
    query = (
        select(sessions.c.id)
        .where(sessions.c.rollout_id == rollout_id)
        .order_by(sessions.c.created_at, sessions.c.id)
    )
    return list(conn.execute(query).scalars())


def seal(conn: Connection, session_id: str) -> int:
    """Mark a session as sealed against further calls, and store how many it had. Returns the count.

    Sealing twice changes nothing.
    """
    stored = conn.execute(select(sessions.c.calls_at_seal).where(sessions.c.id == session_id)).scalar()
    if stored is not None:
        return int(stored)
    count = conn.execute(
        select(func.count()).select_from(calls).where(calls.c.session_id == session_id)
    ).scalar_one()
    conn.execute(update(sessions).where(sessions.c.id == session_id).values(sealed=True, calls_at_seal=count))
    return int(count)


def sampled_tokens(conn: Connection, session_id: str) -> int:
    """Count the sampled tokens that a session's calls have recorded."""
    query = select(func.coalesce(func.sum(calls.c.completion_len), 0)).where(calls.c.session_id == session_id)
    return int(conn.execute(query).scalar_one())


def _one(conn: Connection, condition: Any) -> SessionRow | None:
    columns = [sessions.c[name] for name in _COLUMNS]
    age = (now() - sessions.c.created_at).label("age_s")
    row = conn.execute(select(*columns, age).where(condition)).mappings().first()
    return None if row is None else SessionRow(**row)


_COLUMNS = [name for name in SessionRow.__dataclass_fields__ if name in sessions.c]
