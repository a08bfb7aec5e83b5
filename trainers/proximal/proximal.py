"""The contract of a proximal policy that must be asked: passes of other weights over a batch, before the
update's own.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from harnessgym.tokens import FloatArray
from harnessgym.traces.trajectories import Row
from trainers.update import UpdateMetrics


class Proximal(Protocol):
    """Every process has one, and all of them call it together."""

    def logprobs(self, rows: Sequence[Row]) -> list[FloatArray]:
        """Of the trained tokens of each row, float32 [T]; what stands in other places does not matter."""
        ...

    def stepped(self, metrics: UpdateMetrics) -> None:
        """Learn that a step was taken."""
        ...

    def state(self) -> dict[str, Any] | None:
        """What a checkpoint must hold, in the leader, as copies; None if nothing."""
        ...

    def load(self, state: dict[str, Any] | None) -> None:
        """Go on from a state; without one, begin with the weights that the policy has."""
        ...
