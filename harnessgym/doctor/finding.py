"""The result of one check of this machine."""

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "warn", "missing"]


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    """One line of the doctor's report."""

    topic: str
    """The part of HarnessGym that it concerns."""
    name: str
    state: State
    detail: str
    """What was found, or what is wrong."""
    remedy: str = ""
    """What to do about it; empty if nothing is wrong."""
    needed: bool = False
    """Whether `make quickstart` needs it."""

    @property
    def fatal(self) -> bool:
        """Whether `make quickstart` will fail."""
        return self.needed and self.state == "missing"


def found(
    topic: str, name: str, problem: str | None, detail: str, remedy: str = "", *, needed: bool = False
) -> DoctorFinding:
    """A finding: ok without a problem; otherwise "missing" if `make quickstart` needs it, else a warning."""
    if problem is None:
        return DoctorFinding(topic, name, "ok", detail, needed=needed)
    return DoctorFinding(topic, name, "missing" if needed else "warn", problem, remedy, needed)
