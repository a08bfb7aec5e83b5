"""Tasks: what an agent is asked to do, with what, within which limits, and how the result is judged."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from harnessgym.errors import TaskError

Split = Literal["train", "test"]


@dataclass(frozen=True, slots=True)
class Limits:
    """What a rollout may use. Reaching one ends the rollout with a stop reason; it is not an error."""

    wall_s: float = 60.0
    """Seconds the harness may run."""
    turns: int = 64
    """Model calls the proxy answers in one session."""
    tokens: int | None = None
    """Tokens the policy may sample in one session; None is no limit."""
    output_bytes: int = 1 << 20
    """Bytes of harness output kept per stream; what is beyond is dropped and marked."""
    memory_mb: int = 2_048
    """Address space of each harness process."""
    processes: int = 256
    """Processes and threads of the harness at one time, where the sandbox can count them."""


@dataclass(frozen=True, slots=True)
class Task:
    """One thing to do. Immutable, and the same on every machine for the same id."""

    id: str
    instruction: str
    """What the harness is told, verbatim."""
    split: Split = "train"
    seed: int = 0
    files: Mapping[str, str] = field(default_factory=dict)
    """Relative path to text, laid into the workspace before the harness starts."""
    image: str | None = None
    """Container image, where a task needs one."""
    limits: Limits = Limits()
    network: Literal["proxy"] = "proxy"
    """The only route out of a sandbox is the proxy."""
    grader: str = ""
    """`"module:function"`, called as `grade(task, workspace) -> Grade` after the harness is dead."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Whatever the grader needs; never shown to the harness."""

    def __post_init__(self) -> None:
        for path in self.files:
            if Path(path).is_absolute() or ".." in Path(path).parts:
                raise TaskError(f"Task {self.id!r}: file {path!r} must be a relative path inside the workspace.")


@dataclass(frozen=True, slots=True)
class Grade:
    """What a grader found: reward channels (`"reward"` is the one trained on), or tampering."""

    rewards: Mapping[str, float]
    tampered: str | None = None
    """Why the result cannot be trusted, if it cannot."""


class TaskSet(Protocol):
    """A named, splittable collection of tasks."""

    name: str

    def tasks(self, split: Split) -> Sequence[Task]:
        """All tasks of a split in a fixed order; the two splits share no task."""
        ...
