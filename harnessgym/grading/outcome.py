"""The result of a check. Imports only the standard library, because it is also copied into the test scripts
of written tasks.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class CheckOutcome:
    """The result of a check."""

    passed: bool
    detail: str = ""
    """Why it failed, or a count of what passed."""
    tampered: str | None = None
    """Why the result cannot be trusted; None if it can."""
    part: float | None = None
    """Fraction that passed, 0 to 1; None for a check that is all or nothing."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Further evidence, as JSON values."""
