"""Stores the token ids of a segment in as few bytes as they need.

No table changes. Stored ids stay as they are: the width of an id is the blob's size divided by the number of
ids.
"""

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """See above."""
