"""Groups may be trained several times: what was trained into a version is found by it, and tokens are
counted once.
"""

from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    op.create_index("ix_trained_version", "trained", ["policy_id", "version"])
