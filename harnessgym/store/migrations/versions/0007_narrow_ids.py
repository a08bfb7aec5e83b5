"""Token ids take as few bytes as a segment's need.

No table changes. Ids that are stored already stay as they are: how many bytes each takes is told by their
number.
"""

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """See above."""
