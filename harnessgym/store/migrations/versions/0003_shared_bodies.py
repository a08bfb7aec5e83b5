"""Lets a body begin with an earlier body, and stores long remainders as shared texts."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    with op.batch_alter_table("bodies") as batch:
        batch.add_column(sa.Column("base_id", sa.String(length=24), nullable=True))
        batch.add_column(sa.Column("base_elements", sa.Integer(), nullable=False, server_default="0"))
        batch.add_column(sa.Column("remainder_hash", sa.String(), nullable=True))
        batch.create_foreign_key(op.f("fk_bodies_base_id"), "bodies", ["base_id"], ["id"])
        batch.create_foreign_key(op.f("fk_bodies_remainder_hash"), "messages", ["remainder_hash"], ["hash"])
