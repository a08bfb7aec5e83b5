"""Adds event sources, reward explanations, and the advantages that tokens were trained with."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    with op.batch_alter_table("events") as batch:
        batch.add_column(sa.Column("source", sa.String(), nullable=False, server_default="proxy"))
        batch.add_column(sa.Column("target_agent_id", sa.String(length=24), nullable=True))
        batch.add_column(sa.Column("span_id", sa.String(), nullable=True))
        batch.create_foreign_key(op.f("fk_events_target_agent_id"), "agents", ["target_agent_id"], ["id"])
        batch.create_index(op.f("ix_events_span_id"), ["span_id"])
    with op.batch_alter_table("rewards") as batch:
        batch.add_column(sa.Column("detail", sa.Text(), nullable=True))
    op.create_table(
        "advantages",
        sa.Column("id", sa.String(length=24), nullable=False),
        sa.Column("trained_id", sa.String(length=24), nullable=False),
        sa.Column("segment_id", sa.String(length=24), nullable=False),
        sa.Column("start", sa.Integer(), nullable=False),
        sa.Column("end", sa.Integer(), nullable=False),
        sa.Column("value", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["trained_id"], ["trained.id"], name=op.f("fk_advantages_trained_id")),
        sa.ForeignKeyConstraint(["segment_id"], ["segments.id"], name=op.f("fk_advantages_segment_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_advantages")),
        sa.UniqueConstraint("trained_id", "segment_id", "start", name=op.f("uq_advantages_trained_id")),
    )
    op.create_index(op.f("ix_advantages_trained_id"), "advantages", ["trained_id"])
    op.create_index(op.f("ix_advantages_segment_id"), "advantages", ["segment_id"])
