"""Indexes the ledger by version: groups may be trained several times, and views count their tokens once."""

from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    op.create_index("ix_trained_version", "trained", ["policy_id", "version"])
