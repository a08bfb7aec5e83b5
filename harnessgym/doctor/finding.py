"""What a check of this machine found."""

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "warn", "missing"]


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    """One line of the doctor's report."""

    topic: str
    """What part of HarnessGym it is about."""
    name: str
    state: State
    detail: str
    """What is there, or why it is not."""
    remedy: str = ""
    """What to do about it; empty if nothing is wrong."""
    needed: bool = False
    """Whether the default line (`make quickstart`) cannot do without it."""

    @property
    def fatal(self) -> bool:
        """Whether the default line will not run."""
        return self.needed and self.state == "missing"


def found(
    topic: str, name: str, problem: str | None, detail: str, remedy: str = "", *, needed: bool = False
) -> DoctorFinding:
    """A finding that is ok unless there is a problem, which is a warning where the default line does not
    need it.
    """
    if problem is None:
        return DoctorFinding(topic, name, "ok", detail, needed=needed)
    return DoctorFinding(topic, name, "missing" if needed else "warn", problem, remedy, needed)
