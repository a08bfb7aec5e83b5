"""The contract of a metrics sink: where the numbers of a run go besides its folder, e.g. TensorBoard.

A sink is a class constructed with a `SinkPlace`. It may fail, hang or be missing; the run continues without
it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol


@dataclass(frozen=True, slots=True)
class SinkPlace:
    """The run that a sink is for."""

    folder: Path
    """Folder of the run."""
    run_id: str
    name: str
    """Name of the run."""
    project: str
    config: Mapping[str, Any] = field(default_factory=dict)
    """The run's settings as JSON values."""


class Sink(Protocol):
    """A metrics sink. Only one thread uses it."""

    needs: ClassVar[str]
    """Module that must be installed."""

    def __init__(self, place: SinkPlace) -> None: ...

    def last_step(self) -> int | None:
        """The highest step of this run that it already has, -1 if there is none; None if it cannot tell."""
        ...

    def write(self, step: int, at: float, values: Mapping[str, float]) -> None:
        """Write the numbers of a step. Called once per step, in order. `at` is in Unix seconds."""
        ...

    def flush(self) -> None:
        """Return when the written steps survive the end of this process, as far as the sink can tell."""
        ...

    def close(self) -> None:
        """Flush and release everything."""
        ...
