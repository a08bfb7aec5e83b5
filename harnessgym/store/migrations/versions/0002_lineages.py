"""Adds session options, the evidence for an agent, and the rule that matched a side call."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    with op.batch_alter_table("sessions") as batch:
        batch.add_column(sa.Column("options", sa.JSON(), nullable=False, server_default="{}"))
    with op.batch_alter_table("calls") as batch:
        batch.add_column(sa.Column("side_call", sa.String(), nullable=True))
    with op.batch_alter_table("agents") as batch:
        batch.add_column(sa.Column("session_id", sa.String(length=24), nullable=True))
        batch.add_column(sa.Column("key", sa.String(), nullable=True))
        batch.add_column(sa.Column("evidence", sa.String(), nullable=True))
        batch.create_foreign_key(op.f("fk_agents_session_id"), "sessions", ["session_id"], ["id"])
        batch.create_unique_constraint(op.f("uq_agents_session_id"), ["session_id", "key"])
