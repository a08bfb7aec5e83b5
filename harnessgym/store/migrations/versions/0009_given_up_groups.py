"""Adds a group's minimum of graded rollouts, why and at which version it was given up, and the group it
replaces.
"""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    with op.batch_alter_table("groups") as batch:
        batch.add_column(sa.Column("min_members", sa.Integer(), nullable=False, server_default="2"))
        batch.add_column(sa.Column("given_up", sa.String(), nullable=True))
        batch.add_column(sa.Column("given_up_version", sa.Integer(), nullable=True))
        batch.add_column(sa.Column("replaces", sa.Integer(), nullable=True))
        batch.create_index("ix_groups_replaces", ["run_id", "purpose", "replaces"], unique=True)
