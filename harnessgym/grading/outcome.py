"""What a check found. Of the standard library alone, because it is also copied into test scripts that are
written.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class CheckOutcome:
    """What a check found."""

    passed: bool
    detail: str = ""
    """Why not, or what was counted."""
    tampered: str | None = None
    """Why what was measured cannot be trusted, if it cannot."""
    part: float | None = None
    """How much of it was right, 0 to 1, where a check can tell; None is all or nothing."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Further evidence, as JSON values."""
