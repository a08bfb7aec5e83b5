"""Settings of proximal policies. Nothing here needs torch."""

from typing import Literal

from pydantic import Field

from harnessgym.config import Config


class Ewma(Config):
    """A moving average of past versions' weights (PPO-EWMA, revised: arXiv 2605.12070, known from a third
    party's note).
    """

    name: Literal["ewma"] = "ewma"
    window: int | None = Field(None, gt=0)
    """W, in versions: each counts W / (W + 2) of what the next one does. `max_staleness` if not given."""
    reset_below: float = Field(0.9, ge=0, le=1)
    """When corrections leave a smaller share of the tokens than this, the average begins again from the
    weights that the step makes. 0: never."""

    @property
    def beta(self) -> float:
        """Weight of a version relative to the one after it."""
        window = self.window or 0
        return window / (window + 2)
