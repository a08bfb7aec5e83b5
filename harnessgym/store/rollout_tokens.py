"""The tokens of one rollout: its segments, and the calls that were asked with and sampled them.

Training rows and answers are built from these records. `audit` reads the same rows without decoding them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sqlalchemy import Connection, bindparam, func, select

from harnessgym.store.tables import agents, calls, rollouts, segments, sessions
from harnessgym.store.token_copies import StoredTokens, restored
from harnessgym.tokens import FloatArray, IdArray, pack_ids, unpack_logprobs, widen_ids


@dataclass(frozen=True, slots=True)
class CallTokens:
    """One call and the segments that hold its tokens."""

    id: str
    session_id: str
    agent_id: str | None
    parent_agent_id: str | None
    """The agent that started the call's agent."""
    policy_id: str
    """The policy that was called."""
    kind: str
    status: str
    sampling: Mapping[str, Any]
    """Sampling settings as they were applied."""
    prompt_len: int
    prompt_hash: str
    """`hash_ids` of the ids that the upstream client put on the wire."""
    prompt_segment: str
    completion_len: int | None
    completion_segment: str | None
    version_spans: Sequence[Sequence[int]] | None
    """[start, end, version] of each span of the completion."""
    finish_reason: str | None


@dataclass(frozen=True, slots=True)
class SegmentTokens:
    """The tokens that one prompt or completion adds after its parent segment."""

    id: str
    parent_id: str | None
    ids: IdArray
    """int32 [T]"""
    logprobs: FloatArray | None
    """float32 [T]; None for a prompt and for an outside model's completion"""


def calls_of(conn: Connection, rollout_id: str) -> list[CallTokens]:
    """Return a rollout's calls by session in order of opening; within a session in the order they began."""
    return [CallTokens(*tuple(row)) for row in conn.execute(_CALLS, {"rollout": rollout_id})]


def segments_of(conn: Connection, rollout_id: str) -> dict[str, SegmentTokens]:
    """Return all segments of a rollout by id.

    Raises `TraceError` if the stored bytes of one are not its number of ids.
    """
    rows = conn.execute(_SEGMENTS, {"rollout": rollout_id}).all()
    tokens = restored({row.id: StoredTokens(row.length, row.ids, row.copies) for row in rows})
    out = {}
    for row in rows:
        ids = np.frombuffer(pack_ids(tokens[row.id]), dtype="<i4")
        logprobs = None if row.logprobs is None else unpack_logprobs(row.logprobs)
        out[row.id] = SegmentTokens(row.id, row.parent_id, ids, logprobs)
    return out


def completions_of(conn: Connection, rollout_id: str) -> dict[str, IdArray]:
    """Return the sampled ids of a rollout's calls by completion segment."""
    query = select(segments.c.id, segments.c.length, segments.c.ids)
    query = query.join(calls, calls.c.completion_segment == segments.c.id).where(
        calls.c.rollout_id == rollout_id
    )
    return {row.id: widen_ids(row.ids, row.length, row.id) for row in conn.execute(query)}


def policies_called(conn: Connection, rollout_id: str) -> list[str | None]:
    """Return the ids of the policies that a rollout's calls name; None for the rollout's own."""
    query = select(calls.c.policy_id).where(calls.c.rollout_id == rollout_id).distinct()
    return list(conn.execute(query).scalars())


_CALLS = (
    select(
        *(calls.c[name] for name in ("id", "session_id", "agent_id")),
        agents.c.parent_agent_id,
        func.coalesce(calls.c.policy_id, rollouts.c.policy_id).label("policy_id"),
        *(calls.c[name] for name in ("kind", "status", "sampling_applied")),
        *(calls.c[name] for name in ("prompt_len", "prompt_hash", "prompt_segment")),
        *(calls.c[name] for name in ("completion_len", "completion_segment", "version_spans")),
        calls.c.finish_reason,
    )
    .join(sessions, sessions.c.id == calls.c.session_id)
    .outerjoin(agents, agents.c.id == calls.c.agent_id)
    .join(rollouts, rollouts.c.id == calls.c.rollout_id)
    .where(calls.c.rollout_id == bindparam("rollout"))
    .order_by(sessions.c.created_at, sessions.c.id, calls.c.ordinal)
)
_SEGMENTS = (
    select(*(segments.c[name] for name in ("id", "parent_id", "length", "ids", "copies", "logprobs")))
    .join(sessions, sessions.c.id == segments.c.session_id)
    .where(sessions.c.rollout_id == bindparam("rollout"))
)
