"""Where the numbers of a run go besides its folder: TensorBoard and the like.

A sink is a class that is made with a `SinkPlace`. It may fail, hang or be missing: a run goes on without it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol


@dataclass(frozen=True, slots=True)
class SinkPlace:
    """What a sink is told of the run it is for."""

    folder: Path
    """Folder of the run."""
    run_id: str
    name: str
    """Of the run."""
    project: str
    config: Mapping[str, Any] = field(default_factory=dict)
    """The run's settings, as JSON values."""


class Sink(Protocol):
    """One place. Used by one thread."""

    needs: ClassVar[str]
    """Module without which it cannot be made."""

    def __init__(self, place: SinkPlace) -> None: ...

    def last_step(self) -> int | None:
        """The highest step of this run that it holds already, -1 if there is none; None if it cannot tell."""
        ...

    def write(self, step: int, at: float, values: Mapping[str, float]) -> None:
        """Take the numbers of a step, once per step and in order. `at`: Unix seconds."""
        ...

    def flush(self) -> None:
        """Return when what was written outlives this process, as far as the sink can know."""
        ...

    def close(self) -> None:
        """Flush and let go."""
        ...
