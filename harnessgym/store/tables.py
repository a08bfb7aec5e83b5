"""The schema, declared once. `migrations/` builds exactly this; a test compares the two.

Ids are text that the process creating the row generates (`new_id`), so that rows can refer to each other
before any of them is written. Times are Unix seconds. Calls, segments, bodies, events and edges use the clock
of the process that recorded them, so that their times are consistent with each other; all other rows use the
database's clock (`clock`). Token ids take 2, 3 or 4 bytes each (`tokens.narrow_ids`). Logprobs are float32,
little-endian.
"""

import os
import random
import time

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)

from harnessgym.store.clock import now

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_name)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)


_random = random.Random()
"""Source of the random part of ids. Ids are not secret, and reading the system's source would yield to
another thread about eight times per call."""
# A forked child inherits the generator's state and would make the same ids as its parent.
os.register_at_fork(after_in_child=_random.seed)


def new_id() -> str:
    """Return a new row id: 24 hex digits that sort by creation time to the microsecond, then random."""
    return f"{time.time_ns() // 1000:014x}{_random.getrandbits(40):010x}"


def _id() -> Column[str]:
    return Column("id", String(24), primary_key=True)


def _ref(table: str, *, null: bool = False, index: bool = True, name: str | None = None) -> Column[str]:
    column = name or f"{table.removesuffix('s')}_id"
    return Column(column, String(24), ForeignKey(f"{table}.id"), nullable=null, index=index)


def _created() -> Column[float]:
    return Column("created_at", Float, nullable=False, default=now())


runs = Table(
    "runs", metadata, _id(),
    Column("name", String, nullable=False),
    Column("config", JSON, nullable=False),
    Column("code_version", String, nullable=False),
    Column("status", String, nullable=False),
    _created(),
    Column("ended_at", Float),
)  # fmt: skip

policies = Table(
    "policies", metadata, _id(), _ref("runs"), Column("name", String, nullable=False), _created()
)

policy_versions = Table(
    "policy_versions", metadata, _id(),
    _ref("policies", name="policy_id"),
    Column("version", Integer, nullable=False),
    Column("parent_version", Integer),
    Column("kind", String, nullable=False),
    Column("path", String, nullable=False),
    Column("step", Integer, nullable=False),
    Column("checksum", String, nullable=False),
    Column("bytes", Integer().with_variant(BigInteger(), "postgresql"), nullable=False),
    Column("committed", Boolean, nullable=False, default=False),
    Column("orphaned", Boolean, nullable=False, default=False),
    _created(),
    UniqueConstraint("policy_id", "version"),
)  # fmt: skip

tasks = Table(
    "tasks", metadata, _id(),
    Column("set", String, nullable=False),
    Column("key", String, nullable=False),
    Column("split", String, nullable=False),
    Column("payload_hash", String, nullable=False),
    Column("baseline", JSON),
    _created(),
    Column("payload", JSON(none_as_null=True)),
    UniqueConstraint("set", "key", "payload_hash"),
)  # fmt: skip

groups = Table(
    "groups", metadata, _id(),
    _ref("runs"),
    _ref("tasks"),
    _ref("policies", name="policy_id"),
    Column("purpose", String, nullable=False),
    Column("ordinal", Integer, nullable=False),
    Column("size", Integer, nullable=False),
    Column("sampling", JSON, nullable=False),
    Column("submitted_version", Integer, nullable=False),
    Column("state", String, nullable=False),
    _created(),
    Column("min_members", Integer, nullable=False, server_default="2"),
    Column("given_up", String),
    Column("given_up_version", Integer),
    Column("replaces", Integer),
    Column("batch", Integer),
    Column("place", Integer),
    Column("submitted_versions", JSON(none_as_null=True)),
    UniqueConstraint("run_id", "purpose", "ordinal"),
    Index("ix_groups_state", "run_id", "purpose", "state"),
    Index("ix_groups_replaces", "run_id", "purpose", "replaces", unique=True),
    Index("ix_groups_batch", "run_id", "purpose", "batch", "place", unique=True),
)  # fmt: skip

rollouts = Table(
    "rollouts", metadata, _id(),
    _ref("groups"),
    _ref("runs"),
    _ref("tasks"),
    _ref("policies", name="policy_id"),
    Column("slot", Integer, nullable=False),
    Column("attempt", Integer, nullable=False, default=0),
    Column("harness", String, nullable=False),
    Column("sandbox", String, nullable=False),
    Column("seed", Integer, nullable=False),
    Column("status", String, nullable=False),
    Column("stop_reason", String),
    Column("verdict", String),
    Column("detail", Text),
    Column("latencies", JSON),
    Column("frozen", Boolean, nullable=False, default=False),
    Column("holder", String),
    Column("lease_expires", Float),
    _created(),
    Column("ended_at", Float),
    Column("cause", String),
    Column("grading", JSON(none_as_null=True)),
    Column("started_at", Float),
    Column("not_before", Float),
    UniqueConstraint("group_id", "slot", "attempt"),
    Index("ix_rollouts_status", "run_id", "status"),
    Index("ix_rollouts_created_at", "created_at"),
)  # fmt: skip

sessions = Table(
    "sessions", metadata, _id(),
    _ref("rollouts"),
    Column("key_hash", String, nullable=False, unique=True),
    Column("sampling", JSON, nullable=False),
    Column("history", String, nullable=False),
    Column("limits", JSON, nullable=False),
    Column("version_pin", Integer),
    Column("sealed", Boolean, nullable=False, default=False),
    Column("calls_at_seal", Integer),
    _created(),
    Column("options", JSON, nullable=False, server_default="{}"),
)  # fmt: skip

agents = Table(
    "agents", metadata, _id(),
    _ref("rollouts"),
    Column("name", String, nullable=False),
    Column("role", String),
    Column("parent_agent_id", String(24), ForeignKey("agents.id")),
    Column("spawn_event_id", String(24)),
    _created(),
    Column("session_id", String(24), ForeignKey("sessions.id")),
    Column("key", String),
    Column("evidence", String),
    UniqueConstraint("session_id", "key"),
)  # fmt: skip

segments = Table(
    "segments", metadata, _id(),
    _ref("sessions"),
    Column("kind", String, nullable=False),
    Column("parent_id", String(24), ForeignKey("segments.id")),
    Column("hash", String, nullable=False),
    Column("length", Integer, nullable=False),
    Column("ids", LargeBinary, nullable=False),
    Column("logprobs", LargeBinary),
    _created(),
    Column("copies", JSON(none_as_null=True)),
)  # fmt: skip

calls = Table(
    "calls", metadata, _id(),
    # No index of its own: the unique constraint below begins with this column.
    _ref("sessions", index=False),
    _ref("rollouts"),
    _ref("agents", null=True, index=False),
    Column("ordinal", Integer, nullable=False),
    Column("parent_call_id", String(24), ForeignKey("calls.id")),
    Column("parent_evidence", String, nullable=False),
    Column("protocol", String, nullable=False),
    Column("kind", String, nullable=False),
    Column("status", String, nullable=False),
    Column("history", String, nullable=False),
    Column("request_digest", String, nullable=False),
    Column("chain_digest", String, nullable=False),
    Column("prompt_len", Integer, nullable=False),
    Column("prompt_hash", String, nullable=False),
    Column("prompt_segment", String(24), ForeignKey("segments.id"), nullable=False),
    Column("completion_len", Integer),
    Column("completion_hash", String),
    Column("completion_segment", String(24), ForeignKey("segments.id")),
    Column("answer_digest", String),
    Column("version_spans", JSON),
    Column("sampling_asked", JSON, nullable=False),
    Column("sampling_applied", JSON, nullable=False),
    Column("finish_reason", String),
    Column("stop_token", Integer),
    Column("upstream", String, nullable=False),
    Column("usage", JSON),
    Column("timings", JSON),
    Column("break_class", String),
    Column("break_detail", Text),
    Column("error", Text),
    _created(),
    Column("side_call", String),
    _ref("policies", null=True, index=False, name="policy_id"),
    UniqueConstraint("session_id", "ordinal"),
)  # fmt: skip

routed_experts = Table(
    "routed_experts", metadata, _id(),
    Column("call_id", String(24), ForeignKey("calls.id"), nullable=False),
    Column("start", Integer, nullable=False),
    Column("tokens", Integer, nullable=False),
    Column("layers", Integer, nullable=False),
    Column("top_k", Integer, nullable=False),
    Column("width", Integer, nullable=False),
    Column("experts", LargeBinary, nullable=False),
    _created(),
    UniqueConstraint("call_id"),
)  # fmt: skip
"""Which experts computed the tokens [start, start + tokens) of a call's context, its prompt and answer:
`tokens` * `layers` * `top_k` numbers of `width` bytes, compressed (`harnessgym.routed_experts`).
"""

messages = Table(
    "messages", metadata, Column("hash", String, primary_key=True), Column("body", Text, nullable=False)
)

bodies = Table(
    "bodies", metadata, _id(),
    Column("call_id", String(24), ForeignKey("calls.id"), nullable=False, index=True),
    Column("direction", String, nullable=False),
    Column("message_hashes", JSON, nullable=False),
    Column("remainder", LargeBinary, nullable=False),
    _created(),
    _ref("bodies", name="base_id", null=True, index=False),
    Column("base_elements", Integer, nullable=False, server_default="0"),
    Column("remainder_hash", String, ForeignKey("messages.hash")),
    Column("base_runs", JSON(none_as_null=True)),
)  # fmt: skip

events = Table(
    "events", metadata, _id(),
    _ref("rollouts"),
    _ref("agents", null=True, index=False),
    Column("t", Float, nullable=False),
    Column("kind", String, nullable=False),
    Column("call_id", String(24), ForeignKey("calls.id")),
    Column("attributes", JSON, nullable=False),
    Column("evidence", String),
    Column("confidence", Float),
    _created(),
    Column("source", String, nullable=False, server_default="proxy"),
    Column("target_agent_id", String(24), ForeignKey("agents.id")),
    Column("span_id", String, index=True),
)  # fmt: skip

edges = Table(
    "edges", metadata, _id(),
    _ref("rollouts"),
    Column("source_event_id", String(24), ForeignKey("events.id"), nullable=False),
    Column("target_event_id", String(24), ForeignKey("events.id"), nullable=False),
    Column("kind", String, nullable=False),
    Column("evidence", String),
    Column("confidence", Float),
    _created(),
)  # fmt: skip

rewards = Table(
    "rewards", metadata, _id(),
    _ref("rollouts"),
    Column("unit", String, nullable=False),
    Column("target", String, nullable=False),
    Column("channel", String, nullable=False),
    Column("value", Float, nullable=False),
    Column("source", String, nullable=False),
    _created(),
    Column("detail", Text),
    UniqueConstraint("rollout_id", "unit", "target", "channel"),
)  # fmt: skip

exclusions = Table(
    "exclusions", metadata, _id(),
    _ref("rollouts"),
    Column("call_id", String(24), ForeignKey("calls.id"), nullable=False),
    Column("start", Integer, nullable=False),
    Column("end", Integer, nullable=False),
    Column("reason", String, nullable=False),
    _created(),
    UniqueConstraint("call_id", "start", "end"),
)  # fmt: skip

trained = Table(
    "trained", metadata, _id(),
    _ref("rollouts"),
    _ref("policies", name="policy_id"),
    Column("step", Integer, nullable=False),
    Column("version", Integer, nullable=False),
    Column("tokens", Integer, nullable=False),
    Column("max_staleness", Integer, nullable=False),
    _created(),
    UniqueConstraint("rollout_id", "policy_id", "version"),
    Index("ix_trained_version", "policy_id", "version"),
)  # fmt: skip

advantages = Table(
    "advantages", metadata, _id(),
    Column("trained_id", String(24), ForeignKey("trained.id"), nullable=False, index=True),
    Column("segment_id", String(24), ForeignKey("segments.id"), nullable=False, index=True),
    Column("start", Integer, nullable=False),
    Column("end", Integer, nullable=False),
    Column("value", Float, nullable=False),
    UniqueConstraint("trained_id", "segment_id", "start"),
)  # fmt: skip
"""Advantages of the tokens [start, end) of a segment in the step that trained its rollout."""

workers = Table(
    "workers", metadata,
    Column("id", String, primary_key=True),
    _ref("runs", null=True),
    Column("kind", String, nullable=False),
    Column("address", String, nullable=False),
    Column("version", Integer, nullable=False),
    Column("state", String, nullable=False),
    Column("updated_at", Float, nullable=False),
    _ref("policies", null=True, index=False, name="policy_id"),
)  # fmt: skip

leases = Table(
    "leases", metadata,
    Column("resource", String, primary_key=True),
    Column("holder", String, nullable=False),
    Column("expires", Float, nullable=False),
)  # fmt: skip
