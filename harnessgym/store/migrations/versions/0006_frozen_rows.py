"""Protects the row, tokens and bodies of a frozen rollout too.

No table changes: `schema.upgrade` creates the triggers of `store/views.py` again.
"""

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """See above."""
