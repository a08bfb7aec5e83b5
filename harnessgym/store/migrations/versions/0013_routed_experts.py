"""Adds the experts that computed the tokens of a call, for routing replay."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    op.create_table(
        "routed_experts",
        sa.Column("id", sa.String(24), nullable=False),
        sa.Column("call_id", sa.String(24), nullable=False),
        sa.Column("start", sa.Integer(), nullable=False),
        sa.Column("tokens", sa.Integer(), nullable=False),
        sa.Column("layers", sa.Integer(), nullable=False),
        sa.Column("top_k", sa.Integer(), nullable=False),
        sa.Column("width", sa.Integer(), nullable=False),
        sa.Column("experts", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["call_id"], ["calls.id"], name=op.f("fk_routed_experts_call_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_routed_experts")),
        sa.UniqueConstraint("call_id", name=op.f("uq_routed_experts_call_id")),
    )
