"""Supports several policies in a run: the policy of a worker and of a call, and the groups of each shared
batch.
"""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    for table in ("calls", "workers"):
        with op.batch_alter_table(table) as batch:
            batch.add_column(sa.Column("policy_id", sa.String(24), nullable=True))
            batch.create_foreign_key(op.f(f"fk_{table}_policy_id"), "policies", ["policy_id"], ["id"])
    with op.batch_alter_table("groups") as batch:
        batch.add_column(sa.Column("batch", sa.Integer(), nullable=True))
        batch.add_column(sa.Column("place", sa.Integer(), nullable=True))
        batch.add_column(sa.Column("submitted_versions", sa.JSON(none_as_null=True), nullable=True))
        batch.create_index("ix_groups_batch", ["run_id", "purpose", "batch", "place"], unique=True)
