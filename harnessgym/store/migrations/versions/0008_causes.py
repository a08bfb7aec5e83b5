"""Adds a rollout's cause of failure, the evidence for its grade, its start time and earliest start time, and
tasks that came with a request.
"""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    with op.batch_alter_table("rollouts") as batch:
        batch.add_column(sa.Column("cause", sa.String(), nullable=True))
        batch.add_column(sa.Column("grading", sa.JSON(), nullable=True))
        batch.add_column(sa.Column("started_at", sa.Float(), nullable=True))
        batch.add_column(sa.Column("not_before", sa.Float(), nullable=True))
    with op.batch_alter_table("tasks") as batch:
        batch.add_column(sa.Column("payload", sa.JSON(), nullable=True))
