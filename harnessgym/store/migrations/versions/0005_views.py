"""Allows versions beyond 2 GiB on PostgreSQL, indexes rollouts by time, drops an index, and clears `frozen`.

Views and triggers come with this revision; `schema.upgrade` makes them from `store/views.py`.
"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.alter_column("policy_versions", "bytes", type_=sa.BigInteger())
    op.drop_index(op.f("ix_calls_session_id"), "calls")
    op.create_index(op.f("ix_rollouts_created_at"), "rollouts", ["created_at"])
    rollouts = sa.table("rollouts", sa.column("frozen", sa.Boolean()))
    op.execute(rollouts.update().values(frozen=False))
