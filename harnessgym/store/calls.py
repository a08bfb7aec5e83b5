"""Calls and their token segments: everything that is recorded about one model call.

A call has two halves. `CallIntent` is written by `intend` before the engine is asked: the prompt's hash and
length, the sampling, the session. `CallOutcome` is written by `finish` before the harness can act: the
sampled tokens with log-probabilities and policy versions, and how the call ended. `set_status` then records
the delivery as it is observed. An intent that never finished marks its rollout incomplete.

`proxies.recorder` writes these records; the columns are declared in `harnessgym.store.tables`, and request
bodies are stored by `harnessgym.store.bodies`.
"""

import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from sqlalchemy import Connection, bindparam, insert, or_, select, update

from harnessgym.errors import StoreError
from harnessgym.outcome.engine_silence import CallSilence
from harnessgym.routed_experts import PackedExperts
from harnessgym.store import bodies, expert_rows
from harnessgym.store.bodies import SplitBody
from harnessgym.store.owned_rows import parents_first
from harnessgym.store.prepared import Prepared
from harnessgym.store.tables import calls, segments
from harnessgym.store.token_copies import StoredTokens, TokenCopy, own_tokens, restored
from harnessgym.tokens import (
    TokenIds,
    VersionSpan,
    hash_completion,
    hash_ids,
    narrow_ids,
    pack_logprobs,
    unpack_logprobs,
)

CallStatus = Literal["intent", "committed", "delivered", "acknowledged", "undelivered", "aborted", "error"]
CallKind = Literal["policy", "side", "compaction", "count"]
FINISHED: tuple[CallStatus, ...] = ("committed", "delivered", "acknowledged", "undelivered", "aborted")
"""Statuses of calls that have tokens."""


@dataclass(frozen=True, slots=True)
class Segment:
    """The tokens that one prompt or completion adds after its parent segment."""

    id: str
    session_id: str
    kind: Literal["prompt", "completion"]
    parent_id: str | None
    ids: TokenIds
    logprobs: Sequence[float] | None = None
    """One per id for a completion; None for a prompt and for an outside model's completion."""
    copies: tuple[TokenCopy, ...] = ()
    """Tokens that other segments of the session have too, in order. They are stored there only."""

    def __post_init__(self) -> None:
        assert self.logprobs is None or self.kind == "completion"
        assert self.logprobs is None or len(self.logprobs) == len(self.ids)


@dataclass(frozen=True, slots=True)
class CallIntent:
    """What is known about a call before the engine is called."""

    id: str
    session_id: str
    rollout_id: str
    ordinal: int
    protocol: str
    kind: CallKind
    history: str
    request_digest: str
    """Digest of the raw body, which tells a retry from a new request."""
    chain_digest: str
    """Digest of context and messages (`message.chain_digests`)."""
    prompt_len: int
    prompt_hash: str
    """`hash_ids` of the exact ids that the upstream client put on the wire."""
    prompt_segment: str
    upstream: str
    sampling_asked: dict[str, Any] = field(default_factory=dict)
    sampling_applied: dict[str, Any] = field(default_factory=dict)
    agent_id: str | None = None
    parent_call_id: str | None = None
    parent_evidence: str = "none"
    """token_prefix (the parent's prompt + completion is a prefix of this prompt), header, message_hash, or
    none."""
    break_class: str | None = None
    break_detail: str | None = None
    side_call: str | None = None
    """Name of the rule that gave it another kind than `policy`."""
    policy_id: str | None = None
    """The policy that is called; None is the rollout's own."""


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """The result of sampling."""

    call_id: str
    segment: Segment
    spans: tuple[VersionSpan, ...]
    answer_digest: str
    """Chain digest of the request's messages and the answer, with which a continuing request starts."""
    finish_reason: str
    stop_token: int | None
    upstream: str
    usage: dict[str, int]
    """Token counts; and `unparsed`, the pieces of malformed markup in the answer, if there are any."""
    timings: dict[str, float]
    status: CallStatus = "committed"
    body: SplitBody | None = None
    """The answer as the outside model sent it."""
    routed_experts: PackedExperts | None = None
    """Which experts computed the call's tokens, if the engine says so. Those that the calls before it have
    are left out."""


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """A stored call."""

    id: str
    session_id: str
    rollout_id: str
    agent_id: str | None
    ordinal: int
    kind: str
    status: str
    parent_call_id: str | None
    request_digest: str
    chain_digest: str
    answer_digest: str | None
    prompt_len: int
    prompt_segment: str
    completion_len: int | None
    completion_segment: str | None
    finish_reason: str | None
    protocol: str
    policy_id: str | None
    version_spans: tuple[VersionSpan, ...]
    usage: dict[str, int]


def intend(
    conn: Connection, intent: CallIntent, segment: Segment | None, body: SplitBody | None = None
) -> None:
    """Write a call's intent and the request's body, and its prompt segment unless that is stored already."""
    # In order of the foreign keys: the call refers to its prompt segment, and the body to the call.
    if segment is not None:
        _insert_segment(conn, segment)
    values = {name: getattr(intent, name) for name in CallIntent.__dataclass_fields__}
    _INSERT_CALL.run(conn, {**values, "status": "intent", "created_at": time.time()})
    if body is not None:
        bodies.add(conn, intent.id, "request", body)


def finish(conn: Connection, outcome: CallOutcome) -> None:
    """Write a call's tokens and outcome. Its intent may be in the same transaction.

    Raises `StoreError` if the store has no intent of the call.
    """
    _insert_segment(conn, outcome.segment)
    if outcome.body is not None:
        bodies.add(conn, outcome.call_id, "answer", outcome.body)
    if outcome.routed_experts is not None:
        expert_rows.add(conn, outcome.call_id, outcome.routed_experts)
    absent = StoreError(
        f"The trace database has no intent of call {outcome.call_id}: its outcome was not stored."
    )
    _FINISH_CALL.run(
        conn,
        {
            "call": outcome.call_id,
            "status": outcome.status,
            "completion_len": len(outcome.segment.ids),
            "completion_hash": hash_completion(
                outcome.segment.ids, outcome.segment.logprobs or (), outcome.spans
            ),
            "completion_segment": outcome.segment.id,
            "answer_digest": outcome.answer_digest,
            "version_spans": [[span.start, span.end, span.version] for span in outcome.spans],
            "finish_reason": outcome.finish_reason,
            "stop_token": outcome.stop_token,
            "upstream": outcome.upstream,
            "usage": outcome.usage,
            "timings": outcome.timings,
        },
        otherwise=absent,
    )


def set_status(conn: Connection, call_id: str, status: CallStatus, error: str | None = None) -> None:
    """Set the status of a call."""
    conn.execute(update(calls).where(calls.c.id == call_id).values(status=status, error=error))


def fail(conn: Connection, call_id: str, error: str) -> None:
    """Record that a call failed. A call that was finished stays finished."""
    # If the database went away during the commit of `finish`, the caller cannot know whether the call was
    # stored, and calls this to be safe.
    conn.execute(
        update(calls)
        .where(calls.c.id == call_id, calls.c.status == "intent")
        .values(status="error", error=error)
    )


def observe(
    conn: Connection, call_ids: Sequence[str], status: Literal["delivered", "acknowledged", "undelivered"]
) -> None:
    """Record how far answers were delivered. Never weakens a status: acknowledged calls stay acknowledged."""
    _OBSERVE[status].run_many(conn, [{"call": call_id} for call_id in call_ids])


def of_sessions(conn: Connection, session_ids: Sequence[str]) -> list[RecordedCall]:
    """Return all calls of some sessions, by session and ordinal."""
    out = []
    for *others, spans, usage in conn.execute(_CALLS, {"sessions": session_ids}):
        fields = (*others, tuple(VersionSpan(*span) for span in spans or ()), usage or {})
        out.append(RecordedCall(*fields))
    return out


def segments_of(conn: Connection, session_ids: Sequence[str]) -> dict[str, Segment]:
    """Return all segments of some sessions by id, parents before children."""
    out: dict[str, Segment] = {}
    in_order = True
    rows = conn.execute(_SEGMENTS, {"sessions": session_ids}).all()
    tokens = restored({row.id: StoredTokens(row.length, row.ids, row.copies) for row in rows})
    for row in rows:
        in_order = in_order and (row.parent_id is None or row.parent_id in out)
        sampled = (
            None
            if row.logprobs is None
            else array("f", unpack_logprobs(row.logprobs).astype("=f4").tobytes())
        )
        out[row.id] = Segment(row.id, row.session_id, row.kind, row.parent_id, tokens[row.id], sampled)
    if in_order:
        return out
    # Their times do not give the order where a proxy's clock was set back between two calls.
    parents = [{"id": segment.id, "parent": segment.parent_id} for segment in out.values()]
    return {row["id"]: out[row["id"]] for row in parents_first(parents, "parent")}


def silences(conn: Connection, rollout_id: str) -> list[CallSilence]:
    """Return in order how long the calls of a rollout waited for their engines, or 0 if not recorded."""
    # A call that failed may have been repeated by the harness. It counts as answered if a call with the same
    # messages was.
    rows = conn.execute(_SILENCES, {"rollout": rollout_id}).all()
    answered = {row.chain_digest for row in rows if row.status in ("committed", "delivered", "acknowledged")}
    return [
        CallSilence(
            call_id=row.id,
            policy=row.kind == "policy",
            upstream=row.upstream,
            answered=row.chain_digest in answered,
            **{name: (row.timings or {}).get(name, 0.0) for name in ("silent_s", "whole_s", "lost_s")},
        )
        for row in rows
    ]


def _insert_segment(conn: Connection, segment: Segment) -> None:
    _INSERT_SEGMENT.run(
        conn,
        {
            "id": segment.id,
            "session_id": segment.session_id,
            "kind": segment.kind,
            "parent_id": segment.parent_id,
            "hash": hash_ids(segment.ids),
            "length": len(segment.ids),
            "ids": narrow_ids(own_tokens(segment.ids, segment.copies)),
            "copies": [copy.to_json() for copy in segment.copies] or None,
            "logprobs": None if segment.logprobs is None else pack_logprobs(segment.logprobs),
            "created_at": time.time(),
        },
    )


_CALLS = (
    select(*(calls.c[name] for name in RecordedCall.__dataclass_fields__))
    .where(calls.c.session_id.in_(bindparam("sessions", expanding=True)))
    .order_by(calls.c.session_id, calls.c.ordinal)
)
_SEGMENTS = (
    select(
        *(
            segments.c[name]
            for name in ("id", "session_id", "kind", "parent_id", "length", "ids", "copies", "logprobs")
        )
    )
    .where(segments.c.session_id.in_(bindparam("sessions", expanding=True)))
    .order_by(segments.c.created_at, segments.c.id)
)
_SILENCES = (
    select(*(calls.c[name] for name in ("id", "kind", "status", "upstream", "chain_digest", "timings")))
    .where(calls.c.rollout_id == bindparam("rollout"))
    .order_by(calls.c.created_at, calls.c.id)
)
_INSERT_SEGMENT = Prepared(insert(segments), segments.c.keys())
_INSERT_CALL = Prepared(insert(calls), (*CallIntent.__dataclass_fields__, "status", "created_at"))
_FINISHED_COLUMNS = (
    "status", "completion_len", "completion_hash", "completion_segment", "answer_digest", "version_spans",
    "finish_reason", "stop_token", "upstream", "usage", "timings",
)  # fmt: skip
_WEAKER: dict[str, tuple[CallStatus, ...]] = {
    "undelivered": ("committed",),
    "delivered": ("committed", "undelivered"),
    "acknowledged": ("committed", "undelivered", "delivered", "aborted"),
}
_OBSERVE = {
    status: Prepared(
        update(calls)
        .where(calls.c.id == bindparam("call"), or_(*(calls.c.status == weak for weak in weaker)))
        .values(status=status)
    )
    for status, weaker in _WEAKER.items()
}
_FINISH_CALL = Prepared(
    update(calls)
    .where(calls.c.id == bindparam("call"))
    .values({name: bindparam(name) for name in _FINISHED_COLUMNS})
)
