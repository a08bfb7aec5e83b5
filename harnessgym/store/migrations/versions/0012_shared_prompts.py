"""Lets a prompt repeat tokens of earlier prompts, and a body repeat elements of an earlier body, anywhere."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    for table, column in (("segments", "copies"), ("bodies", "base_runs")):
        with op.batch_alter_table(table) as batch:
            batch.add_column(sa.Column(column, sa.JSON(none_as_null=True), nullable=True))
