"""The whole schema of the first release."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "leases",
        sa.Column("resource", sa.String(), nullable=False),
        sa.Column("holder", sa.String(), nullable=False),
        sa.Column("expires", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("resource", name=op.f("pk_leases")),
    )
    op.create_table(
        "messages",
        sa.Column("hash", sa.String(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("hash", name=op.f("pk_messages")),
    )
    op.create_table(
        "runs",
        sa.Column("id", sa.String(length=24), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("config", sa.JSON(), nullable=False),
        sa.Column("code_version", sa.String(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("ended_at", sa.Float(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_runs")),
    )
    op.create_table(
        "tasks",
        sa.Column("id", sa.String(length=24), nullable=False),
        sa.Column("set", sa.String(), nullable=False),
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("split", sa.String(), nullable=False),
        sa.Column("payload_hash", sa.String(), nullable=False),
        sa.Column("baseline", sa.JSON(), nullable=True),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tasks")),
        sa.UniqueConstraint("set", "key", "payload_hash", name=op.f("uq_tasks_set")),
    )
    op.create_table(
        "policies",
        sa.Column("id", sa.String(length=24), nullable=False),
        sa.Column("run_id", sa.String(length=24), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_policies_run_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_policies")),
    )
    op.create_index(op.f("ix_policies_run_id"), "policies", ["run_id"], unique=False)
    op.create_table(
        "workers",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("run_id", sa.String(length=24), nullable=True),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("address", sa.String(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("updated_at", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_workers_run_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_workers")),
    )
    op.create_index(op.f("ix_workers_run_id"), "workers", ["run_id"], unique=False)
    op.create_table(
        "groups",
        sa.Column("id", sa.String(length=24), nullable=False),
        sa.Column("run_id", sa.String(length=24), nullable=False),
        sa.Column("task_id", sa.String(length=24), nullable=False),
        sa.Column("policy_id", sa.String(length=24), nullable=False),
        sa.Column("purpose", sa.String(), nullable=False),
        sa.Column("ordinal", sa.Integer(), nullable=False),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("sampling", sa.JSON(), nullable=False),
        sa.Column("submitted_version", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["policy_id"], ["policies.id"], name=op.f("fk_groups_policy_id")),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_groups_run_id")),
        sa.ForeignKeyConstraint(["task_id"], ["tasks.id"], name=op.f("fk_groups_task_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_groups")),
        sa.UniqueConstraint("run_id", "purpose", "ordinal", name=op.f("uq_groups_run_id")),
    )
    op.create_index(op.f("ix_groups_policy_id"), "groups", ["policy_id"], unique=False)
    op.create_index(op.f("ix_groups_run_id"), "groups", ["run_id"], unique=False)
    op.create_index("ix_groups_state", "groups", ["run_id", "purpose", "state"], unique=False)
    op.create_index(op.f("ix_groups_task_id"), "groups", ["task_id"], unique=False)
    op.create_table(
        "policy_versions",
        sa.Column("id", sa.String(length=24), nullable=False),
        sa.Column("policy_id", sa.String(length=24), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("parent_version", sa.Integer(), nullable=True),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("path", sa.String(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("checksum", sa.String(), nullable=False),
        sa.Column("bytes", sa.Integer(), nullable=False),
        sa.Column("committed", sa.Boolean(), nullable=False),
        sa.Column("orphaned", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["policy_id"], ["policies.id"], name=op.f("fk_policy_versions_policy_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_policy_versions")),
        sa.UniqueConstraint("policy_id", "version", name=op.f("uq_policy_versions_policy_id")),
    )
    op.create_index(op.f("ix_policy_versions_policy_id"), "policy_versions", ["policy_id"], unique=False)
    op.create_table(
        "rollouts",
        sa.Column("id", sa.String(length=24), nullable=False),
        sa.Column("group_id", sa.String(length=24), nullable=False),
        sa.Column("run_id", sa.String(length=24), nullable=False),
        sa.Column("task_id", sa.String(length=24), nullable=False),
        sa.Column("policy_id", sa.String(length=24), nullable=False),
        sa.Column("slot", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("harness", sa.String(), nullable=False),
        sa.Column("sandbox", sa.String(), nullable=False),
        sa.Column("seed", sa.Integer(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("stop_reason", sa.String(), nullable=True),
        sa.Column("verdict", sa.String(), nullable=True),
        sa.Column("detail", sa.Text(), nullable=True),
        sa.Column("latencies", sa.JSON(), nullable=True),
        sa.Column("frozen", sa.Boolean(), nullable=False),
        sa.Column("holder", sa.String(), nullable=True),
        sa.Column("lease_expires", sa.Float(), nullable=True),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("ended_at", sa.Float(), nullable=True),
        sa.ForeignKeyConstraint(["group_id"], ["groups.id"], name=op.f("fk_rollouts_group_id")),
        sa.ForeignKeyConstraint(["policy_id"], ["policies.id"], name=op.f("fk_rollouts_policy_id")),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_rollouts_run_id")),
        sa.ForeignKeyConstraint(["task_id"], ["tasks.id"], name=op.f("fk_rollouts_task_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_rollouts")),
        sa.UniqueConstraint("group_id", "slot", "attempt", name=op.f("uq_rollouts_group_id")),
    )
    op.create_index(op.f("ix_rollouts_group_id"), "rollouts", ["group_id"], unique=False)
    op.create_index(op.f("ix_rollouts_policy_id"), "rollouts", ["policy_id"], unique=False)
    op.create_index(op.f("ix_rollouts_run_id"), "rollouts", ["run_id"], unique=False)
    op.create_index("ix_rollouts_status", "rollouts", ["run_id", "status"], unique=False)
    op.create_index(op.f("ix_rollouts_task_id"), "rollouts", ["task_id"], unique=False)
    op.create_table(
        "agents",
        sa.Column("id", sa.String(length=24), nullable=False),
        sa.Column("rollout_id", sa.String(length=24), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("role", sa.String(), nullable=True),
        sa.Column("parent_agent_id", sa.String(length=24), nullable=True),
        sa.Column("spawn_event_id", sa.String(length=24), nullable=True),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["parent_agent_id"], ["agents.id"], name=op.f("fk_agents_parent_agent_id")),
        sa.ForeignKeyConstraint(["rollout_id"], ["rollouts.id"], name=op.f("fk_agents_rollout_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_agents")),
    )
    op.create_index(op.f("ix_agents_rollout_id"), "agents", ["rollout_id"], unique=False)
    op.create_table(
        "rewards",
        sa.Column("id", sa.String(length=24), nullable=False),
        sa.Column("rollout_id", sa.String(length=24), nullable=False),
        sa.Column("unit", sa.String(), nullable=False),
        sa.Column("target", sa.String(), nullable=False),
        sa.Column("channel", sa.String(), nullable=False),
        sa.Column("value", sa.Float(), nullable=False),
        sa.Column("source", sa.String(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["rollout_id"], ["rollouts.id"], name=op.f("fk_rewards_rollout_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_rewards")),
        sa.UniqueConstraint("rollout_id", "unit", "target", "channel", name=op.f("uq_rewards_rollout_id")),
    )
    op.create_index(op.f("ix_rewards_rollout_id"), "rewards", ["rollout_id"], unique=False)
    op.create_table(
        "sessions",
        sa.Column("id", sa.String(length=24), nullable=False),
        sa.Column("rollout_id", sa.String(length=24), nullable=False),
        sa.Column("key_hash", sa.String(), nullable=False),
        sa.Column("sampling", sa.JSON(), nullable=False),
        sa.Column("history", sa.String(), nullable=False),
        sa.Column("limits", sa.JSON(), nullable=False),
        sa.Column("version_pin", sa.Integer(), nullable=True),
        sa.Column("sealed", sa.Boolean(), nullable=False),
        sa.Column("calls_at_seal", sa.Integer(), nullable=True),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["rollout_id"], ["rollouts.id"], name=op.f("fk_sessions_rollout_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_sessions")),
        sa.UniqueConstraint("key_hash", name=op.f("uq_sessions_key_hash")),
    )
    op.create_index(op.f("ix_sessions_rollout_id"), "sessions", ["rollout_id"], unique=False)
    op.create_table(
        "trained",
        sa.Column("id", sa.String(length=24), nullable=False),
        sa.Column("rollout_id", sa.String(length=24), nullable=False),
        sa.Column("policy_id", sa.String(length=24), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("tokens", sa.Integer(), nullable=False),
        sa.Column("max_staleness", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["policy_id"], ["policies.id"], name=op.f("fk_trained_policy_id")),
        sa.ForeignKeyConstraint(["rollout_id"], ["rollouts.id"], name=op.f("fk_trained_rollout_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_trained")),
        sa.UniqueConstraint("rollout_id", "policy_id", "version", name=op.f("uq_trained_rollout_id")),
    )
    op.create_index(op.f("ix_trained_policy_id"), "trained", ["policy_id"], unique=False)
    op.create_index(op.f("ix_trained_rollout_id"), "trained", ["rollout_id"], unique=False)
    op.create_table(
        "segments",
        sa.Column("id", sa.String(length=24), nullable=False),
        sa.Column("session_id", sa.String(length=24), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("parent_id", sa.String(length=24), nullable=True),
        sa.Column("hash", sa.String(), nullable=False),
        sa.Column("length", sa.Integer(), nullable=False),
        sa.Column("ids", sa.LargeBinary(), nullable=False),
        sa.Column("logprobs", sa.LargeBinary(), nullable=True),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["parent_id"], ["segments.id"], name=op.f("fk_segments_parent_id")),
        sa.ForeignKeyConstraint(["session_id"], ["sessions.id"], name=op.f("fk_segments_session_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_segments")),
    )
    op.create_index(op.f("ix_segments_session_id"), "segments", ["session_id"], unique=False)
    op.create_table(
        "calls",
        sa.Column("id", sa.String(length=24), nullable=False),
        sa.Column("session_id", sa.String(length=24), nullable=False),
        sa.Column("rollout_id", sa.String(length=24), nullable=False),
        sa.Column("agent_id", sa.String(length=24), nullable=True),
        sa.Column("ordinal", sa.Integer(), nullable=False),
        sa.Column("parent_call_id", sa.String(length=24), nullable=True),
        sa.Column("parent_evidence", sa.String(), nullable=False),
        sa.Column("protocol", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("history", sa.String(), nullable=False),
        sa.Column("request_digest", sa.String(), nullable=False),
        sa.Column("chain_digest", sa.String(), nullable=False),
        sa.Column("prompt_len", sa.Integer(), nullable=False),
        sa.Column("prompt_hash", sa.String(), nullable=False),
        sa.Column("prompt_segment", sa.String(length=24), nullable=False),
        sa.Column("completion_len", sa.Integer(), nullable=True),
        sa.Column("completion_hash", sa.String(), nullable=True),
        sa.Column("completion_segment", sa.String(length=24), nullable=True),
        sa.Column("answer_digest", sa.String(), nullable=True),
        sa.Column("version_spans", sa.JSON(), nullable=True),
        sa.Column("sampling_asked", sa.JSON(), nullable=False),
        sa.Column("sampling_applied", sa.JSON(), nullable=False),
        sa.Column("finish_reason", sa.String(), nullable=True),
        sa.Column("stop_token", sa.Integer(), nullable=True),
        sa.Column("upstream", sa.String(), nullable=False),
        sa.Column("usage", sa.JSON(), nullable=True),
        sa.Column("timings", sa.JSON(), nullable=True),
        sa.Column("break_class", sa.String(), nullable=True),
        sa.Column("break_detail", sa.Text(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["agent_id"], ["agents.id"], name=op.f("fk_calls_agent_id")),
        sa.ForeignKeyConstraint(
            ["completion_segment"], ["segments.id"], name=op.f("fk_calls_completion_segment")
        ),
        sa.ForeignKeyConstraint(["parent_call_id"], ["calls.id"], name=op.f("fk_calls_parent_call_id")),
        sa.ForeignKeyConstraint(["prompt_segment"], ["segments.id"], name=op.f("fk_calls_prompt_segment")),
        sa.ForeignKeyConstraint(["rollout_id"], ["rollouts.id"], name=op.f("fk_calls_rollout_id")),
        sa.ForeignKeyConstraint(["session_id"], ["sessions.id"], name=op.f("fk_calls_session_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_calls")),
        sa.UniqueConstraint("session_id", "ordinal", name=op.f("uq_calls_session_id")),
    )
    op.create_index(op.f("ix_calls_rollout_id"), "calls", ["rollout_id"], unique=False)
    op.create_index(op.f("ix_calls_session_id"), "calls", ["session_id"], unique=False)
    op.create_table(
        "bodies",
        sa.Column("id", sa.String(length=24), nullable=False),
        sa.Column("call_id", sa.String(length=24), nullable=False),
        sa.Column("direction", sa.String(), nullable=False),
        sa.Column("message_hashes", sa.JSON(), nullable=False),
        sa.Column("remainder", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["call_id"], ["calls.id"], name=op.f("fk_bodies_call_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_bodies")),
    )
    op.create_index(op.f("ix_bodies_call_id"), "bodies", ["call_id"], unique=False)
    op.create_table(
        "events",
        sa.Column("id", sa.String(length=24), nullable=False),
        sa.Column("rollout_id", sa.String(length=24), nullable=False),
        sa.Column("agent_id", sa.String(length=24), nullable=True),
        sa.Column("t", sa.Float(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("call_id", sa.String(length=24), nullable=True),
        sa.Column("attributes", sa.JSON(), nullable=False),
        sa.Column("evidence", sa.String(), nullable=True),
        sa.Column("confidence", sa.Float(), nullable=True),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["agent_id"], ["agents.id"], name=op.f("fk_events_agent_id")),
        sa.ForeignKeyConstraint(["call_id"], ["calls.id"], name=op.f("fk_events_call_id")),
        sa.ForeignKeyConstraint(["rollout_id"], ["rollouts.id"], name=op.f("fk_events_rollout_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_events")),
    )
    op.create_index(op.f("ix_events_rollout_id"), "events", ["rollout_id"], unique=False)
    op.create_table(
        "exclusions",
        sa.Column("id", sa.String(length=24), nullable=False),
        sa.Column("rollout_id", sa.String(length=24), nullable=False),
        sa.Column("call_id", sa.String(length=24), nullable=False),
        sa.Column("start", sa.Integer(), nullable=False),
        sa.Column("end", sa.Integer(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["call_id"], ["calls.id"], name=op.f("fk_exclusions_call_id")),
        sa.ForeignKeyConstraint(["rollout_id"], ["rollouts.id"], name=op.f("fk_exclusions_rollout_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_exclusions")),
        sa.UniqueConstraint("call_id", "start", "end", name=op.f("uq_exclusions_call_id")),
    )
    op.create_index(op.f("ix_exclusions_rollout_id"), "exclusions", ["rollout_id"], unique=False)
    op.create_table(
        "edges",
        sa.Column("id", sa.String(length=24), nullable=False),
        sa.Column("rollout_id", sa.String(length=24), nullable=False),
        sa.Column("source_event_id", sa.String(length=24), nullable=False),
        sa.Column("target_event_id", sa.String(length=24), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("evidence", sa.String(), nullable=True),
        sa.Column("confidence", sa.Float(), nullable=True),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["rollout_id"], ["rollouts.id"], name=op.f("fk_edges_rollout_id")),
        sa.ForeignKeyConstraint(["source_event_id"], ["events.id"], name=op.f("fk_edges_source_event_id")),
        sa.ForeignKeyConstraint(["target_event_id"], ["events.id"], name=op.f("fk_edges_target_event_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_edges")),
    )
    op.create_index(op.f("ix_edges_rollout_id"), "edges", ["rollout_id"], unique=False)
