"""A frozen rollout keeps its own row, its tokens and its bodies too.

No table changes: `schema.upgrade` makes the triggers of `store/views.py` anew.
"""

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """See above."""
