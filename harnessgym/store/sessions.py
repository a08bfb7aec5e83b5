"""Sessions: a key, the sampling and limits it fixes, and whether it is sealed."""

import hashlib
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, func, insert, select, update

from harnessgym.store.clock import now
from harnessgym.store.tables import calls, new_id, sessions


@dataclass(frozen=True, slots=True)
class SessionRow:
    """One session as the store has it."""

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
    """Seconds since it was opened, when the row was read."""


def hash_key(key: str) -> str:
    """What the store keeps of a session key."""
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
    """Open a session for a rollout under an unguessable key."""
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
    """The session that a key opens."""
    return _one(conn, sessions.c.key_hash == hash_key(key))


def get(conn: Connection, session_id: str) -> SessionRow | None:
    """A session by id."""
    return _one(conn, sessions.c.id == session_id)


def of_rollout(conn: Connection, rollout_id: str) -> list[str]:
    """Ids of a rollout's sessions in order of opening."""
    query = (
        select(sessions.c.id)
        .where(sessions.c.rollout_id == rollout_id)
        .order_by(sessions.c.created_at, sessions.c.id)
    )
    return list(conn.execute(query).scalars())


def seal(conn: Connection, session_id: str) -> int:
    """Refuse further calls and store how many there were. Sealing twice changes nothing. Returns the
    count.
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
    """How many sampled tokens a session's calls have recorded."""
    query = select(func.coalesce(func.sum(calls.c.completion_len), 0)).where(calls.c.session_id == session_id)
    return int(conn.execute(query).scalar_one())


def _one(conn: Connection, condition: Any) -> SessionRow | None:
    columns = [sessions.c[name] for name in _COLUMNS]
    age = (now() - sessions.c.created_at).label("age_s")
    row = conn.execute(select(*columns, age).where(condition)).mappings().first()
    return None if row is None else SessionRow(**row)


_COLUMNS = [name for name in SessionRow.__dataclass_fields__ if name in sessions.c]
